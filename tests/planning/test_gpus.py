from __future__ import annotations

import pytest

from gpulesson_tools.planning.hardware import gpus

HEAD = "name,memory_gib,bandwidth,float32,cache"


def written(tmp_path, *lines: str):
    file = tmp_path / "mine.csv"
    file.write_text("\n".join(lines), "utf-8")
    return file


def test_a_gpu_is_found_by_its_name_and_as_torch_calls_it():
    t4 = gpus.find("T4")
    assert (t4.bandwidth, t4.rates["float16"], t4.cache, t4.capability) == (320e9, 65e12, 4 * 2**20, (7, 5))
    for name in ("t4", "Tesla T4", "NVIDIA T4"):
        assert gpus.find(name) is t4
    assert gpus.find("NVIDIA A100-SXM4-80GB").name == gpus.find("a100 80gb").name == "A100-80GB"
    assert gpus.find("NVIDIA GeForce RTX 4090").name == "RTX 4090"
    assert gpus.find("NVIDIA H100 80GB HBM3").name == "H100"


def test_no_two_names_are_taken_for_one():
    names = [gpus._key(each) for gpu in gpus.read() for each in {gpus._key(n) for n in (gpu.name, *gpu.also)}]
    assert len(names) == len(set(names))


def test_an_unknown_name_is_answered_with_the_nearest_all_others_and_how_to_add_one():
    with pytest.raises(ValueError, match=r"unknown GPU 'RTX 3091', did you mean RTX 3090\?") as error:
        gpus.find("RTX 3091")
    for part in ("There are P100, V100", "B200", HEAD.replace(",", ","), "--table FILE"):
        assert part in str(error.value)
    with pytest.raises(ValueError, match=r"unknown GPU 'TPU'\. There are"):
        gpus.find("TPU")


@pytest.mark.parametrize("gpu", gpus.read(), ids=lambda gpu: gpu.name)
def test_the_table_holds_together(gpu):
    rates = gpu.rates
    assert gpu.source.startswith("https://"), "the vendor's document"
    assert 4 * 2**30 < gpu.memory < 300 * 2**30
    assert 2e11 < gpu.bandwidth < 1e13
    assert rates["float64"] <= rates["float32"] <= rates.get("tfloat32", rates["float32"])
    assert rates.get("tfloat32", 0) <= rates["float16"] / 1.9, "float16 tensor cores are twice as quick"
    assert rates.get("bfloat16", rates["float16"]) == rates["float16"]
    assert gpu.capability is not None
    assert ("tfloat32" in rates) == ("bfloat16" in rates) == (gpu.capability >= (8, 0))
    if gpu.name.startswith(
        "RTX"
    ):  # of GeForce, sums in float32 halve the rate: twice float32, NVIDIA's white papers
        assert rates["float16"] == pytest.approx(2 * rates["float32"], rel=0.01)
        assert rates["tfloat32"] == rates["float32"]


def test_rates_agree_with_torchs_own_table():
    info = pytest.importorskip("torch._inductor.analysis.device_info")
    for ours, theirs in (("A100-80GB", "NVIDIA A100"), ("H100", "NVIDIA H100"), ("B200", "NVIDIA B200")):
        gpu, found = gpus.find(ours), info._device_mapping.get(theirs)
        if found is None or not hasattr(found, "tops_sparsity_factor"):
            pytest.skip("an older torch has another table")
        dense = found.tops["torch.tf32"] / found.tops_sparsity_factor
        assert gpu.rates["tfloat32"] == pytest.approx(dense * 1e12, rel=0.01)
        assert gpu.bandwidth == pytest.approx(found.dram_bw_gbs * 1e9, rel=0.05)


def test_what_was_seen_in_no_document_says_so():
    table = gpus.read()
    assert all(gpu.seen for gpu in table)
    assert all(set(gpu.unseen) <= {"memory_gib", *gpus.RATES} for gpu in table), "columns of the table"
    assert "float16" in gpus.find("A10G").unseen
    assert sum(not gpu.unseen for gpu in table) >= 10, "the rows that a page can show without a word"


def test_types_without_units_run_at_the_rate_of_float32():
    t4 = gpus.find("T4")
    assert t4.rate("float16") == 65e12
    assert t4.rate("bfloat16") == t4.rate("tfloat32") == t4.rate("float32") == 8.1e12
    assert t4.rate("complex64") is None


def test_readers_add_rows_and_replace_ours(tmp_path):
    file = written(
        tmp_path,
        "# my own",
        "",
        "name, memory_gib, bandwidth, float32, cache, float16, capability, also",
        "Mine, 24, 1000, 40, 6, 160, 8.6, the big one;the other",
        "T4, 14, 300, 8, 4,,,",
    )
    table = gpus.read(file)
    mine = gpus.find("The Big One", table)
    assert (mine.name, mine.memory, mine.bandwidth) == ("Mine", 24 * 2**30, 1e12)
    assert (mine.rates, mine.capability) == ({"float32": 40e12, "float16": 160e12}, (8, 6))
    assert gpus.find("t4", table).bandwidth == 300e9
    assert gpus.find("A100", table) is gpus.find("A100")
    assert gpus.find("T4").bandwidth == 320e9


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], r"has no column name, .*; found no line"),
        (["name,memory_gib,float32,cache"], "has no column bandwidth; found name,"),
        ([HEAD + ",speed"], "unknown column 'speed'"),
        ([HEAD, "x,16,300,-8,4"], r"mine\.csv, line 2, float32: found '-8', expected a number above 0"),
        (["# c", HEAD, "", "x,16,300,8,0"], r"mine\.csv, line 4, cache: found '0'"),
        ([HEAD, "x,16,fast,8,4"], "line 2, bandwidth: found 'fast'"),
        ([HEAD, "x,nan,300,8,4"], "line 2, memory_gib: found 'nan'"),
        ([HEAD, "x,inf,300,8,4"], "line 2, memory_gib: found 'inf'"),
        ([HEAD, "x,16,,8,4"], "line 2: bandwidth may not be empty"),
        ([HEAD, "x,16,300"], "line 2: float32, cache may not be empty"),
        ([HEAD, ",16,300,8,4"], "line 2: name may not be empty"),
        ([HEAD, "x,16,300,8,4,5"], "line 2 has more cells than there are columns"),
        ([HEAD + ",capability", "x,16,300,8,4,sm_80"], "line 2, capability: found 'sm_80'"),
    ],
)
def test_a_wrong_row_is_refused_with_its_line(tmp_path, lines, message):
    with pytest.raises(ValueError, match=message):
        gpus.read(written(tmp_path, *lines))


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(FileNotFoundError):
        gpus.read(tmp_path / "none.csv")
    file = tmp_path / "mine.csv"
    file.write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(ValueError, match=r"mine\.csv is not text in UTF-8"):
        gpus.read(file)
