"""Safetensors files: what the library reads is read, what is wrong is refused, at little cost."""

import io
import json
import time
import tracemalloc
from collections import Counter

import forged
import pytest
import safetensors
import safetensors.torch
import torch

from gpulesson.checkpoint.plain import decode, encode
from gpulesson.checkpoint.tensorfile import MOST_VALUES, NAMES, Refused, read_header, write

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.ones(3, dtype=torch.bool),
    "é\n": torch.tensor(1.5, dtype=torch.bfloat16),
    "none": torch.zeros(0, 4),
    "turned": torch.arange(6).reshape(2, 3).t(),
}


def written(tensors=TENSORS, **metadata):
    file = io.BytesIO()
    write(file, tensors, metadata)
    return file.getvalue()


def read(content):
    """The header and the tensors of a file with these bytes."""
    file = io.BytesIO(content)
    header = read_header(file)
    return header, header.read_tensors(file)


def verify(content):
    file = io.BytesIO(content)
    read_header(file).verify(file)


def test_the_library_reads_what_is_written_here():
    tensors = TENSORS | {name: torch.ones(2).to(dtype) for dtype, name in NAMES.items()}
    found = safetensors.torch.load(written(tensors, format="pt"))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_what_the_library_writes_is_read_here():
    tensors = {name: tensor.contiguous() for name, tensor in TENSORS.items()}
    header, found = read(safetensors.torch.save(tensors, {"who": "the library"}))
    assert (header.metadata, header.digest) == ({"who": "the library"}, None)
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert found.keys() == tensors.keys()


def entry(**changes):
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


WRONG = {
    "a number of bytes beyond the end": ({"a": entry(data_offsets=[0, 16], shape=[4])}, "8 are there"),
    "bytes that no tensor has": (
        {"a": entry(data_offsets=[0, 4], shape=[1])},
        "have 4 bytes, and 8 are there",
    ),
    "a gap": ({"a": entry(data_offsets=[4, 8], shape=[1])}, "overlap, or leave gaps"),
    "an overlap": ({"a": entry(), "b": entry(data_offsets=[4, 8], shape=[1])}, "overlap, or leave gaps"),
    "one place twice": ({"a": entry(), "b": entry()}, "overlap"),
    "places in the wrong order": ({"a": entry(data_offsets=[8, 0])}, "shape is not that of its bytes"),
    "a shape larger than its bytes": ({"a": entry(shape=[2**40])}, "shape is not that of its bytes"),
    "a shape whose product overflows": (
        {"a": entry(shape=[2**32, 2**32, 2])},
        "shape is not that of its bytes",
    ),
    "a negative size": ({"a": entry(shape=[-2])}, "no list of counts"),
    "a huge size of no elements": ({"a": entry(shape=[2**61, 0], data_offsets=[0, 0])}, "no list of counts"),
    "a size that is a text": ({"a": entry(shape=["2"])}, "no list of counts"),
    "a size that is true": ({"a": entry(shape=[True, 2])}, "no list of counts"),
    "a size with a point": ({"a": entry(shape=[2.0])}, "no list of counts"),
    "a shape that is no list": ({"a": entry(shape=2)}, "no list of counts"),
    "three places": ({"a": entry(data_offsets=[0, 4, 8])}, "no list of counts"),
    "a hundred dimensions": ({"a": entry(shape=[1] * 100 + [2])}, "shape is not that of its bytes"),
    "a dtype of others": ({"a": entry(dtype="F8_E9")}, "dtype that is not known"),
    "a dtype that is a list": ({"a": entry(dtype=["F32"])}, "dtype that is not known"),
    "no dtype": ({"a": {"shape": [2], "data_offsets": [0, 8]}}, "no tensor"),
    "one more name": ({"a": entry(stride=[0])}, "no tensor"),
    "an entry that is a list": ({"a": [1]}, "no tensor"),
    "metadata that is a list": ({"__metadata__": [], "a": entry()}, "no object with texts"),
    "metadata that is a number": ({"__metadata__": {"a": 3}, "a": entry()}, "no object with texts"),
    "a list": (b"[1]", "no object with texts"),
    "no JSON": (b"{a}     ", "JSON is not as it was written"),
    "a name twice": (b'{"a":1,"a":2}', "comes twice"),
    "UTF-16": ("{}".encode("utf-16"), "JSON is not"),
    "NaN": (b'{"a":NaN}', "a number in its JSON"),
    "a hundred thousand lists in one another": (b'{"a":' + b"[" * 100_000, "JSON is not"),
    "a number of a million digits": (b'{"a":' + b"7" * 10**6 + b"}", "a number in its JSON"),
    "half a million values": (b'{"a":[' + b"0," * 500_000 + b"0]}", "and at most"),
    "nine million bytes": (b'{"a":"' + b"x" * 9_000_000 + b'"}', "do not begin as a safetensors"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused(case):
    header, said = WRONG[case]
    content = forged.put_together(header, bytes(8))
    with pytest.raises(Refused, match=said):
        read(content)
    with pytest.raises(Refused, match=said):
        verify(content)


@pytest.mark.parametrize("case", [name for name, (header, _) in WRONG.items() if isinstance(header, dict)])
def test_the_library_refuses_it_or_means_the_same(case):
    """Of what is refused here, the library reads some: it is never the other way, see `tests/trust`."""
    content = forged.put_together(WRONG[case][0], bytes(8))
    accepted = ["a huge size of no elements", "a hundred dimensions", "a size that is true", "one more name"]
    try:
        safetensors.deserialize(content)
        assert case in accepted
    except (safetensors.SafetensorError, TypeError, OverflowError):
        pass


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 8, bytes(8), b"\x02" + bytes(7) + b"{"])
def test_what_is_hardly_there_is_refused(content):
    with pytest.raises(Refused):
        read_header(io.BytesIO(content))


def test_a_wrong_digest_is_noticed_wherever_the_change_is():
    content = bytearray(written())
    read(content)
    for place in range(len(content)):
        content[place] ^= 4
        try:
            header, _ = read(content)
            assert header.digest is None  # its name is another now: a checkpoint has to have one
        except Refused:
            pass
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
