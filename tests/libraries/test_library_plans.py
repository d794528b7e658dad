"""Programs of public libraries can be planned for as they are, also where the library has the loop."""

import json

import pytest

from programs import FOLDER, PROGRAMS, run

SCRIPT = str(FOLDER / "train_program.py")
LIGHTNING = 8 * 16 + 16 + 16 * 3 + 3, 8  # numbers in the network of the program, samples in its batch
EXPECTED = {
    "use_lightning": LIGHTNING,
    "use_accelerate": LIGHTNING,
    "use_transformers_trainer": (None, 8),
    "use_timm": (None, None),
}


def blocks(numbers):
    """Return the least and the most bytes of four float32 tensors of so many numbers, in blocks of 512."""
    return 4 * numbers, 4 * numbers + 4 * 512


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_a_program_with_a_library_is_planned_for_unmodified(name, tmp_path, installed):
    installed(PROGRAMS[name].library)
    done = run(["-m", "gpulesson", "plan", "--gpu", "T4", "--json", SCRIPT, name], tmp_path)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    numbers, batch = EXPECTED[name]
    held = plan["peak"]["by_kind"]
    assert plan["steps"] == (2 if name == "use_accelerate" else 3)  # it ends after two
    assert plan["batch_size"] == batch
    if numbers:
        least, most = blocks(numbers)
        assert least <= held["parameters"] <= most
        assert 2 * least <= held["optimizer state"] <= 2 * most  # Adam's two, or AdamW's
    (gpu,) = plan["gpus"]
    assert gpu["answer"] == "fits"
    if batch:
        assert gpu["largest_batch"] > 100 * batch
    else:
        assert gpu["largest_batch"] is None and "no DataLoader feeds its steps" in " ".join(plan["notes"])
