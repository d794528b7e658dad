"""The practice GPU says what CUDA's own device checks say, word for word."""

import json
import subprocess
import sys
from collections import Counter

import oracle
import pytest
import torch

from practice_gpu import practice_gpu

DIFFERENT = {
    "binary_cross_entropy, weighted | ppc": "CUDA fails an internal assertion, whose text holds a path and a "
    "line of PyTorch's sources; the practice GPU says that there are two devices",
    "lstm cell | ccpcc": "CUDA's fused kernel, which a CPU does not have, finds the state of the cell and "
    "names it; the practice GPU says that there are two devices",
}
"""Cases in which the practice GPU's text is another than CUDA's, with the reason."""

UNVERIFIABLE = {
    "logical_and": "cp",
    "where": "ccp cpc cpp pcc pcp ppc",
    "where, a scalar": "cpc cpp pcc pcp ppc",
    "complex": "cp",
    "matrix by vector": "pc",
    "batch_norm": "ccccp cccpc ccpcc cpccc cpppp",
    "batch_norm, evaluation": "ccccp cccpc ccpcc cpccc cpppp",
    "lstm cell": "ccccp ccpcc cpccc pcccc",
    "lstm": "ccccp cccpc ccpcc cpccc cpppp",
    "attention, plain": "ccp cpc cpp pcc pcp",
    "cross_entropy, probabilities": "cp",
    "binary_cross_entropy": "cp",
    "binary_cross_entropy, weighted": "ccp cpc cpp",
    "binary_cross_entropy_with_logits": "cp pc",
    "binary_cross_entropy_with_logits, pos_weight": "ccp cpc cpp pcc ppc",
    "cosine_similarity": "cp pc",
    "index_put": "ccp cpp pcc",
    "index_put, one element": "ccp cpp pcc",
    "index_fill": "cp",
    "index_fill in place": "cp",
    "masked_fill": "cp",
    "masked_fill, a scalar": "cpc cpp",
    "masked_fill in place": "cp",
    "masked_scatter": "ccp cpc cpp",
    "lstsq": "cp",
    "bilinear": "cccp ccpc cpcc cppp",
    "stft": "cp",
    "cosine_embedding_loss": "ccp ppc",
    "triplet_margin_loss": "ccp",
    "margin_ranking_loss": "ccp ppc",
    "gaussian_nll_loss": "ccp cpc pcc ppc",
    "instance_norm": "ccp cpc pcc pcp ppc",
    "embedding_bag": "pc",
    "gru cell": "cccp cpcc",
    "foreach_add": "cp",
    "multinomial, CPU generator": "c",
    "normal_, CPU generator": "c",
}
"""Cases in which the practice GPU objects, and CUDA needs its driver before it could."""

ON_CUDA = torch.backends.cuda.is_built() and not torch.cuda.is_available() and sys.platform == "linux"


@pytest.fixture(scope="module", params=[15, pytest.param(1, marks=pytest.mark.thorough)])
def answers(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, str]:
    """CUDA's answers to every fifteenth question, or to each, by the names of the questions."""
    if not ON_CUDA:
        pytest.skip("CUDA's checks can be asked only with a CUDA build of torch, without a GPU, on Linux")
    file = tmp_path_factory.mktemp("oracle") / "answers.json"
    command = [sys.executable, oracle.__file__, str(file), str(request.param)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference_mode"])
def test_every_text_is_that_of_cuda(answers: dict[str, str], inference: bool) -> None:
    counts: Counter[str] = Counter()
    different, unverifiable = {}, {}
    with practice_gpu(force=True), torch.inference_mode() if inference else torch.no_grad():
        for name, mix in oracle.cases():
            key = f"{name} | {mix}"
            if key not in answers:
                continue
            found = oracle.answer(name, mix, oracle.on_gpu)
            if found == answers[key]:
                counts["both pass" if found == oracle.PASSED else "same text"] += 1
            elif answers[key] == oracle.PASSED:
                unverifiable[key] = found
            else:
                different[key] = f"CUDA: {answers[key]}\n practice GPU: {found}"
    print(
        f"{len(answers)} cases: {dict(counts)}, {len(unverifiable)} unverifiable, {len(different)} different"
    )
    asked = len(list(oracle.cases()))
    assert asked >= 764 and len(answers) in (asked, -(-asked // 15))
    assert counts["same text"] >= 0.55 * len(answers)
    assert not any("crashed" in text for text in answers.values())
    listed = {f"{name} | {mix}" for name, mixes in UNVERIFIABLE.items() for mix in mixes.split()}
    assert different.keys() == (DIFFERENT.keys() - listed) & answers.keys(), different
    assert len(DIFFERENT) <= 4
    if len(answers) == asked:
        assert listed | DIFFERENT.keys() <= answers.keys(), listed - answers.keys()
    assert unverifiable.keys() == listed & answers.keys(), unverifiable.keys() ^ listed


@pytest.mark.gpu(real=True)
def test_every_text_is_that_of_a_real_gpu() -> None:
    """On a machine with a GPU nothing is unverifiable; the differences go to standard output."""
    with torch.no_grad():
        real = {case: oracle.answer(*case, oracle.on_gpu) for case in oracle.cases()}
        with practice_gpu(force=True):
            ours = {case: oracle.answer(*case, oracle.on_gpu) for case in oracle.cases()}
    different = {" | ".join(case): (real[case], ours[case]) for case in real if real[case] != ours[case]}
    for case, (theirs, text) in different.items():
        print(f"{case}\n  GPU:          {theirs}\n  practice GPU: {text}")
    assert different.keys() == DIFFERENT.keys()


def test_cases_in_which_cuda_needs_no_driver_agree_at_once(gpu) -> None:
    """A few of the same questions, quickly, so that a slip shows before the slow test runs."""
    for name, mix, text in (
        ("add", "cc", oracle.PASSED),
        ("add", "pc", "at least two devices, cuda:0 and cpu!"),
        ("linear", "cpp", "wrapper_CUDA_addmm"),
        ("cartesian_prod", "cp", "meshgrid expects all tensors"),
        ("rms_norm", "cp", "wrapper_CUDA___fused_rms_norm"),
        ("bilinear", "pccc", "wrapper_CUDA_bmm"),
        ("set_", "cp", "no longer allowed"),
    ):
        assert text in oracle.answer(name, mix, oracle.on_gpu)
