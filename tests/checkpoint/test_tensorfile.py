"""Safetensors files: what is written the library reads, what is wrong is refused, at little cost."""

import json
import os
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import forged
import pytest
import safetensors.torch
import torch

from gpulesson.checkpoint.plain import MOST_VALUES, decode, encode
from gpulesson.checkpoint.tensorfile import DTYPES, Refused, open_tensors, write

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.ones(3, dtype=torch.bool),
    "é\n": torch.tensor(1.5, dtype=torch.bfloat16),
    "none": torch.zeros(0, 4),
    "nothing": torch.zeros(0),
    "no bytes": torch.zeros(2, 0, dtype=torch.int64),
    "turned": torch.arange(6).reshape(2, 3).t(),
}


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "a.safetensors"


def written(path, tensors=TENSORS, **metadata):
    with path.open("w+b") as file:
        write(file, tensors, metadata)
    return path


def read(path):
    """The texts, the digest and the tensors of a file."""
    with open_tensors(path) as file:
        return file.metadata, file.digest, file.read()


def verify(path):
    with open_tensors(path) as file:
        file.verify()


def same(one, other):
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def test_empty_tensors_have_no_order(path):
    """They have one place, so that each opening of the file may give them in another order."""
    for _ in range(20):
        verify(written(path, {str(number): torch.zeros(0, number) for number in range(8)}))


def test_the_library_reads_what_is_written_here(path):
    tensors = TENSORS | {name: torch.ones(2).to(dtype) for dtype, name in DTYPES.items()}
    found = safetensors.torch.load_file(written(path, tensors, format="pt"))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_what_the_library_writes_is_read_here(path):
    tensors = {name: tensor.contiguous() for name, tensor in TENSORS.items()}
    safetensors.torch.save_file(tensors, path, {"who": "the library"})
    metadata, digest, found = read(path)
    assert (metadata, digest) == ({"who": "the library"}, None)
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert found.keys() == tensors.keys()


def test_the_digest_is_of_all_that_is_in_it(path):
    metadata, digest, _ = read(written(path, who="we"))
    assert metadata == {"who": "we"}
    assert digest == forged.digest_of(*forged.take_apart(path.read_bytes()))


def entry(**changes):
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


WRONG = {
    "a number of bytes beyond the end": {"a": entry(data_offsets=[0, 16], shape=[4])},
    "bytes that no tensor has": {"a": entry(data_offsets=[0, 4], shape=[1])},
    "a gap": {"a": entry(data_offsets=[4, 8], shape=[1])},
    "an overlap": {"a": entry(), "b": entry(data_offsets=[4, 8], shape=[1])},
    "one place twice": {"a": entry(), "b": entry()},
    "places in the wrong order": {"a": entry(data_offsets=[8, 0])},
    "a shape larger than its bytes": {"a": entry(shape=[2**40])},
    "a shape whose product overflows": {"a": entry(shape=[2**32, 2**32, 2])},
    "a negative size": {"a": entry(shape=[-2])},
    "a huge size of no elements": {"a": entry(), "b": entry(shape=[2**63, 0], data_offsets=[8, 8])},
    "two sizes whose product overflows": {
        "a": entry(),
        "b": entry(shape=[0, 2**40, 2**40], data_offsets=[8, 8]),
    },
    "four bits a number": {"a": entry(dtype="F4", shape=[16])},
    "a size that is a text": {"a": entry(shape=["2"])},
    "a size with a point": {"a": entry(shape=[2.0])},
    "a shape that is no list": {"a": entry(shape=2)},
    "three places": {"a": entry(data_offsets=[0, 4, 8])},
    "a dtype of others": {"a": entry(dtype="F8_E9")},
    "a dtype that is a list": {"a": entry(dtype=["F32"])},
    "no dtype": {"a": {"shape": [2], "data_offsets": [0, 8]}},
    "an entry that is a list": {"a": [1]},
    "metadata that is a list": {"__metadata__": [], "a": entry()},
    "metadata that is a number": {"__metadata__": {"a": 3}, "a": entry()},
    "a list": b"[1]",
    "no JSON": b"{a}     ",
    "UTF-16": "{}".encode("utf-16"),
    "NaN": b'{"a":NaN}',
    "a hundred thousand lists in one another": b'{"a":' + b"[" * 100_000,
    "a number of a million digits": b'{"a":' + b"7" * 10**6 + b"}",
    "half a million values": b'{"a":[' + b"0," * 500_000 + b"0]}",
    "nine million bytes": b'{"a":"' + b"x" * 9_000_000 + b'"}',
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused(path, case):
    path.write_bytes(forged.put_together(WRONG[case], bytes(8)))
    for look in (read, verify):
        with pytest.raises(Refused, match=r"safetensors file|cannot be read"):
            look(path)


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 8, bytes(8), b"\x02" + bytes(7) + b"{"])
def test_what_is_hardly_there_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(Refused):
        read(path)


def test_a_file_that_becomes_shorter_while_it_is_read_is_refused(path):
    written(path, {"a": torch.ones(2**20)})
    with open_tensors(path) as file:
        os.truncate(path, path.stat().st_size - 2**16)
        with pytest.raises(Refused, match="its tensor a cannot be read"):
            file.read()


def test_a_wrong_digest_is_noticed_wherever_the_change_is(path):
    content = bytearray(written(path, who="we").read_bytes())
    *about, whole = read(path)
    for place in range(len(content)):
        content[place] ^= 4
        path.write_bytes(content)
        try:
            *now, found = read(path)
        except Refused:
            with pytest.raises(Refused):
                verify(path)
        else:  # the digest's name is another now: a checkpoint has to have one
            assert now[1] is None or (now == about and same(found, whole)), place
        content[place] ^= 4


def test_many_small_things_cost_little():
    """A file may make three times its bytes and 64 MB; the JSON that it may hold is what costs most."""
    per_value = {
        "lists": b"[]",
        "dicts": b"{}",
        "numbers": b"1.5",
        "texts": b'"ab"',
        "marks": b'{"$tensor":"a"}',
        "keys": b'{"%d":0}',
    }
    for what, value in per_value.items():
        count = MOST_VALUES // (2 if what in ("dicts", "marks", "keys", "lists") else 1) - 10
        items = (value.replace(b"%d", b"%d" % number) for number in range(count))
        text = b"[" + b",".join(items) + b',{"$tensor":"a"}]'
        tracemalloc.start()
        decode(text, {"a": torch.zeros(1)})
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3 * len(text) + 64 * 2**20, (what, peak / 2**20, len(text) / 2**20)


DECODED = {
    b'{"$no":1}': "JSON is not",
    b'{"$tuple":1}': "no list where one was written",
    b'{"$tuple":[1],"more":1}': "JSON is not",
    b'{"$tensor":"b"}': "JSON is not",
    b"[]": "tensors that its JSON does not name",
    b'{"$tensor":["a"]}': "JSON is not",
    b'{"$tensor":"a","dtype":"torch.float33"}': "JSON is not",
    b'{"$tensor":"a","dtype":"torch.load"}': "no dtype where one was written",
    b'{"$tensor":"a","dtype":"complex128"}': "JSON is not",
    b'{"$dict":[[1,2],[1,3]]}': "a key in its JSON comes twice",
    b'{"$dict":[[[],2]]}': "JSON is not",
    b'[{"$tensor":"a"},' + b"[" * 101 + b"]" * 102: "nested more than 100 deep",
    b'{"$dict":[1]}': "no pairs where some were written",
    b'{"$set":[[]]}': "JSON is not",
    b'{"$set":[1,1]}': "a key in its JSON comes twice",
    b'{"$complex":[1]}': "JSON is not",
    b'{"$complex":[1,true]}': "no float where one was written",
    b'{"$device":5}': "no str where one was written",
    b'{"$float":"1"}': "no float where one was written",
    b'{"$float":[]}': "no str where one was written",
    b'{"$bytes":"?"}': "JSON is not",
    b'{"$dtype":"torch.nn"}': "no dtype where one was written",
    b'{"$device":"nowhere"}': "JSON is not",
    b'{"$Size":["a"]}': "a shape that is not made of ints",
    b'{"$Size":[99999999999999999999]}': "a shape that is not made of ints",
    b'{"$deque":[1],"maxlen":"x"}': "JSON is not",
    b'{"$Counter":[1]}': "no dict where one was written",
    b'{"$OrderedDict":{},"more":1}': "JSON is not",
    b"Infinity": "a number in its JSON",
    b"\xff": "JSON is not",
}


@pytest.mark.parametrize("text", DECODED)
def test_json_that_nothing_here_wrote_is_refused(text):
    with pytest.raises(Refused, match=DECODED[text]):
        decode(text, {"a": torch.zeros(3)})


def test_what_is_encoded_is_plain_where_json_can_say_it():
    content = {"lr": 0.1, "names": ["é", None, True], "state": {0: Counter({3: 2})}}
    text, tensors = encode(content)
    assert not tensors
    assert json.loads(text) == {
        "lr": 0.1,
        "names": ["é", None, True],
        "state": {"$dict": [[0, {"$Counter": {"$dict": [[3, 2]]}}]]},
    }


@pytest.mark.parametrize("content", ['{{"$set":[{}]}}', '{{"$dict":[{}]}}'])
@pytest.mark.parametrize("key", ["{}", '{{"$tuple":[{}]}}', '{{"$complex":[{}.0,1.0]}}'])
def test_keys_with_one_hash_are_refused(content, key):
    """Python looks through all keys of one hash: 30,000 of them took 20 seconds."""
    keys = (key.format(number * (2**61 - 1)) for number in range(30_000))
    assert hash(7 * (2**61 - 1)) == hash(8 * (2**61 - 1))
    pair = "[{},0]" if "dict" in content else "{}"
    text = content.format(",".join(pair.format(each) for each in keys))
    begun = time.process_time()
    with pytest.raises(Refused, match=r"keys that are neither texts nor numbers, more than 200"):
        decode(text.encode(), {})
    assert time.process_time() - begun < 10  # a hang took more than 20


def test_two_keys_may_be_nan():
    text, tensors = encode({"odd": {float("nan"), float("nan")}})
    assert len(decode(text, tensors)["odd"]) == 2


def test_what_could_not_be_read_is_not_written():
    with pytest.raises(Refused, match="201 keys"):
        encode({"seen": {(number,) for number in range(201)}})
    text, tensors = encode(
        {"seen": {(number,) for number in range(200)}, "by place": dict.fromkeys(range(5000), 1)}
    )
    assert len(decode(text, tensors)["by place"]) == 5000
