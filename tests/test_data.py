from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import http.server
import os
import re
import shutil
import socket
import stat
import struct
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import FashionMNIST

from gpulesson import _fashion, data
from gpulesson._fashion import MissingDataError
from gpulesson.data import (
    Batches,
    DataError,
    fashion_mnist_folder,
    load_fashion_mnist,
    load_iris,
)

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
NAMES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)


def idx(values: np.ndarray) -> bytes:
    """The IDX format: 0, 0, 8 (bytes), number of dimensions, the dimensions, the values."""
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def arrays(train: int = 30, test: int = 20) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        TRAIN_IMAGES: random.integers(0, 256, (train, 28, 28), dtype=np.uint8),
        TRAIN_LABELS: random.integers(0, 10, train, dtype=np.uint8),
        TEST_IMAGES: random.integers(0, 256, (test, 28, 28), dtype=np.uint8),
        TEST_LABELS: random.integers(0, 10, test, dtype=np.uint8),
    }


@pytest.fixture
def contents(monkeypatch) -> dict[str, bytes]:
    """Small files in Fashion-MNIST's format, whose checksums are made the known ones."""
    files = {name: idx(values) for name, values in arrays().items()}
    packed = {f"{name}.gz": gzip.compress(content) for name, content in files.items()}
    known = {name: known_file(packed[f"{name}.gz"], content) for name, content in files.items()}
    monkeypatch.setattr(_fashion, "FILES", known)
    monkeypatch.setattr(_fashion, "MIRRORS", ["http://127.0.0.1:9/"])  # nobody answers there
    monkeypatch.setattr(FashionMNIST, "mirrors", [])
    md5 = [(name, hashlib.md5(content).hexdigest()) for name, content in packed.items()]
    monkeypatch.setattr(FashionMNIST, "resources", md5)
    return {**files, **packed}


def known_file(packed: bytes, content: bytes) -> _fashion.PublishedFile:
    md5 = {len(content): hashlib.md5(content).hexdigest()}
    return _fashion.PublishedFile(len(packed), hashlib.sha256(packed).hexdigest(), md5)


def store(folder: Path, contents: dict[str, bytes], *names: str) -> Path:
    raw = folder / "FashionMNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name in names or NAMES:
        (raw / name).write_bytes(contents[name])
    return raw


def fill_the_disk(monkeypatch, module, at: str = "") -> None:
    """Let the writing of files whose names begin so fail in the middle."""
    original = module.whole_file

    @contextlib.contextmanager
    def whole_file(path):
        with original(path) as file:
            if path.name.startswith(at):
                file.write(b"half")
                raise OSError(28, "No space left on device")
            yield file

    monkeypatch.setattr(module, "whole_file", whole_file)


def assert_all_there(images: data.Images) -> None:
    expected = arrays()
    assert np.array_equal(images.train_images.numpy(), expected[TRAIN_IMAGES])
    assert np.array_equal(images.train_targets.numpy(), expected[TRAIN_LABELS])
    assert np.array_equal(images.test_images.numpy(), expected[TEST_IMAGES])
    assert np.array_equal(images.test_targets.numpy(), expected[TEST_LABELS])
    assert images.train_images.dtype == images.test_images.dtype == torch.uint8
    assert images.train_targets.dtype == images.test_targets.dtype == torch.int64
    assert images.source == "fashion-mnist excerpt, 30/20"
    assert images.class_names[0] == "T-shirt/top" and len(images.class_names) == 10


class Server:
    """A file server on this machine that misbehaves as `how` says."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.how, self.requests = "serve", []
        self.release = threading.Event()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rpartition("/")[2]
                server.requests.append(name)
                server.answer(self, files[name], server.how)

            def do_HEAD(self) -> None:  # by which torchvision looks for redirections
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=[0.02])
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/"

    def answer(self, request: http.server.BaseHTTPRequestHandler, content: bytes, how: str) -> None:
        if how == "missing":
            request.send_error(404)
            return
        half = len(content) // 2
        if how == "corrupt":
            content = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
        request.send_response(200)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        with contextlib.suppress(OSError):  # the client may be gone
            request.wfile.write(content[:half])
            request.wfile.flush()
            if how == "stall":
                self.release.wait(600)
            if how != "cut":
                request.wfile.write(content[half:])

    def close(self) -> None:
        self.release.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server(contents, monkeypatch):
    server = Server(contents)
    monkeypatch.setattr(_fashion, "MIRRORS", [server.url])
    yield server
    server.close()


class TestFolder:
    def test_the_environment_names_it(self, monkeypatch, tmp_path):
        monkeypatch.setenv("GPULESSON_DATA", str(tmp_path))
        assert data.data_folder() == tmp_path
        monkeypatch.setenv("GPULESSON_DATA", "~/data")
        assert data.data_folder() == Path.home() / "data"

    def test_otherwise_it_is_the_users_cache(self, monkeypatch, tmp_path):
        monkeypatch.delenv("GPULESSON_DATA", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        folder = data.data_folder()
        assert folder.name == "gpulesson" or "gpulesson" in folder.parts
        assert not folder.exists()  # asking for it makes nothing

    def test_the_loader_looks_there(self, monkeypatch, tmp_path, contents):
        store(tmp_path, contents)
        monkeypatch.setenv("GPULESSON_DATA", str(tmp_path))
        assert_all_there(load_fashion_mnist())


class TestCache:
    def test_unpacked_files(self, tmp_path, contents):
        store(tmp_path, contents)
        assert_all_there(load_fashion_mnist(tmp_path))

    def test_packed_files_alone_and_nothing_is_written(self, tmp_path, contents):
        packed = [f"{name}.gz" for name in NAMES]
        raw = store(tmp_path, contents, *packed)
        assert_all_there(load_fashion_mnist(tmp_path))
        assert sorted(path.name for path in raw.iterdir()) == sorted(packed)

    def test_packed_beside_unpacked(self, tmp_path, contents):
        store(tmp_path, contents, *contents)
        assert_all_there(load_fashion_mnist(tmp_path))

    def test_the_whole_data_set_is_not_called_an_excerpt(self, tmp_path, monkeypatch):
        values = {
            TRAIN_IMAGES: np.zeros((60_000, 28, 28), np.uint8),
            TRAIN_LABELS: np.zeros(60_000, np.uint8),
            TEST_IMAGES: np.zeros((10_000, 28, 28), np.uint8),
            TEST_LABELS: np.zeros(10_000, np.uint8),
        }
        contents = {name: idx(value) for name, value in values.items()}
        monkeypatch.setattr(_fashion, "FILES", {name: known_file(b"", c) for name, c in contents.items()})
        store(tmp_path, contents)
        assert load_fashion_mnist(tmp_path).source == "fashion-mnist, 60000/10000"

    def test_genuine_data(self, genuine_data):
        raw = genuine_data / "FashionMNIST" / "raw"
        images = load_fashion_mnist(genuine_data, download=False, stand_in=False)
        counts = (len(images.train_images), len(images.test_images))
        for name, count in zip((TRAIN_LABELS, TEST_LABELS), counts, strict=True):
            assert (raw / name).stat().st_size == 8 + count
        kind = "fashion-mnist" if counts == (60_000, 10_000) else "fashion-mnist excerpt"
        assert images.source == f"{kind}, {counts[0]}/{counts[1]}"
        # the first training image is an ankle boot, as in the paper's own listing
        assert images.class_names[images.train_targets[0]] == "Ankle boot"
        assert set(images.train_targets.tolist()) == set(range(10))


class TestDamage:
    @pytest.mark.parametrize(
        ("name", "damaged", "message"),
        [
            *((name, lambda whole: whole[: len(whole) // 2], r"which make \d+") for name in NAMES),
            *((name, lambda whole: b"", "its 0 bytes") for name in NAMES),
            (TRAIN_LABELS, lambda whole: whole + b"\0", r"has 39 bytes.*which make 38"),
            (TEST_IMAGES, lambda whole: b"<html>" + whole[6:], "is not a file of 28 × 28 images"),
            (TEST_LABELS, lambda whole: b"<html>" + whole[6:], "is not a file of labels"),
            (TEST_LABELS, lambda whole: whole[:4], r"its 4 bytes begin with the numbers \[2049\], expected"),
            (TEST_IMAGES, lambda whole: idx(np.zeros((20, 32, 32), np.uint8)), "32, 32.*expected.*28, 28"),
            (TEST_LABELS, lambda whole: idx(np.zeros(0, np.uint8)), "announces 0 labels"),
            (TEST_LABELS, lambda whole: whole[:-1] + bytes([12]), "holds the label 12, expected 0 to 9"),
        ],
    )
    def test_a_file_that_is_not_what_it_should_be(self, tmp_path, contents, name, damaged, message):
        raw = store(tmp_path, contents)
        (raw / name).write_bytes(damaged(contents[name]))
        with pytest.raises(DataError, match=message) as caught:
            load_fashion_mnist(tmp_path)
        assert str(raw / name) in str(caught.value) and "Delete this file and run again" in str(caught.value)

    def test_images_and_labels_of_different_data_sets(self, tmp_path, contents):
        raw = store(tmp_path, contents)
        (raw / TRAIN_LABELS).write_bytes(idx(np.zeros(20, np.uint8)))
        with pytest.raises(DataError, match=r"30 images.*20 labels.*Delete both"):
            load_fashion_mnist(tmp_path)

    @pytest.mark.parametrize("name", NAMES)
    def test_one_bit_of_a_packed_file(self, tmp_path, contents, name):
        raw = store(tmp_path, contents, *[f"{name}.gz" for name in NAMES])
        altered = bytearray(contents[f"{name}.gz"])
        altered[len(altered) // 2] ^= 1
        (raw / f"{name}.gz").write_bytes(altered)
        with pytest.raises(DataError) as caught:
            load_fashion_mnist(tmp_path)
        for fact in (
            f"{name}.gz",
            hashlib.sha256(altered).hexdigest(),
            hashlib.sha256(contents[f"{name}.gz"]).hexdigest(),
        ):
            assert fact in str(caught.value)

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize(
        "beside", [(), tuple(f"{name}.gz" for name in NAMES)], ids=["alone", "packed beside"]
    )
    def test_one_bit_of_an_unpacked_file(self, tmp_path, contents, name, beside):
        raw = store(tmp_path, contents, *NAMES, *beside)
        altered = bytearray(contents[name])
        altered[-1] ^= 1
        (raw / name).write_bytes(altered)
        expected = hashlib.md5(contents[name]).hexdigest()
        with pytest.raises(DataError, match=rf"{name} is altered.*expected {expected}. Delete this file"):
            load_fashion_mnist(tmp_path)


class TestKnownFiles:
    """The real table of checksums, without the fixture that replaces it."""

    def test_sizes_are_those_of_60000_and_10000_of_the_first_ones_and_of_the_excerpt(self):
        for name, known in _fashion.FILES.items():
            counts = (60_000, 8000, 6000) if name.startswith("train") else (10_000, 4000, 1000)
            each, header = (784, 16) if "images" in name else (1, 8)
            assert list(known.md5) == [header + count * each for count in counts]

    @pytest.mark.parametrize("name", NAMES)
    def test_one_bit_of_genuine_data(self, genuine_data, tmp_path, name):
        raw = tmp_path / "FashionMNIST" / "raw"
        shutil.copytree(genuine_data / "FashionMNIST" / "raw", raw)
        raw.chmod(0o755)
        altered = bytearray((raw / name).read_bytes())
        altered[len(altered) // 3] ^= 1  # a label stays below 10 or becomes one of another sample
        (raw / name).unlink()
        (raw / name).write_bytes(altered)
        with pytest.raises(DataError, match=rf"{name} is altered"):
            load_fashion_mnist(tmp_path, download=False)

    @pytest.mark.parametrize("pairs", [(0, 2, 1, 3), (0, 2), (1, 3)], ids=["both", "images", "labels"])
    def test_exchanged_files(self, genuine_data, tmp_path, pairs):
        raw = tmp_path / "FashionMNIST" / "raw"
        raw.mkdir(parents=True)
        exchanged = dict(zip(pairs, [pairs[i ^ 1] for i in range(len(pairs))], strict=True))
        for i, name in enumerate(NAMES):
            (raw / name).symlink_to(genuine_data / "FashionMNIST" / "raw" / NAMES[exchanged.get(i, i)])
        with pytest.raises(DataError, match=r"holds what belongs in .*: the files were exchanged. Give them"):
            load_fashion_mnist(tmp_path, download=False)

    def test_another_data_set_of_the_same_names_and_sizes(self, tmp_path):
        store(
            tmp_path,
            {name: idx(np.zeros((60_000, 28, 28)[: 1 + 2 * ("images" in name)], np.uint8)) for name in NAMES},
        )
        with pytest.raises(DataError, match=r"of another data set \(MNIST's files have the same names\)"):
            load_fashion_mnist(tmp_path, download=False)

    def test_an_excerpt_that_no_checksum_is_known_of_is_named_so(self, tmp_path):
        store(tmp_path, {name: idx(values) for name, values in arrays().items()})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            images = load_fashion_mnist(tmp_path, download=False)
        assert images.source == "fashion-mnist excerpt (not verified), 30/20"
        assert np.array_equal(images.train_images.numpy(), arrays()[TRAIN_IMAGES])


def make(kind: str, path: Path) -> None:
    """Put something there that is no file."""
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"device": "/dev/zero", "dangling": "nowhere", "loop": path}[kind])


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and devices of POSIX")
class TestWhatIsNoFile:
    KINDS = ("folder", "pipe", "device", "dangling", "loop")

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("name", [TRAIN_IMAGES, f"{TRAIN_IMAGES}.gz", TEST_LABELS])
    def test_in_place_of_a_data_file(self, tmp_path, contents, kind, name):
        raw = store(tmp_path, contents, *(NAMES if name == TEST_LABELS else NAMES[1:]))
        (raw / name).unlink(missing_ok=True)
        make(kind, raw / name)
        for use in (load_fashion_mnist, fashion_mnist_folder):
            with pytest.raises(DataError) as caught:
                use(tmp_path)
            assert re.match(rf"cannot read the data folder {raw} \(.*{name}", str(caught.value))
            assert "Repair or remove what is there" in str(caught.value)

    @pytest.mark.parametrize("kind", ["pipe", "device", "dangling", "loop"])
    @pytest.mark.parametrize("below", ["", "FashionMNIST", "FashionMNIST/raw"])
    def test_in_place_of_a_folder(self, tmp_path, contents, monkeypatch, kind, below):
        place = tmp_path / "data" / below
        place.parent.mkdir(parents=True, exist_ok=True)
        make(kind, place)
        for download in (False, True):
            with pytest.raises(DataError) as caught:
                load_fashion_mnist(tmp_path / "data", download=download)
            assert str(place) in str(caught.value)
        if not below:
            monkeypatch.setenv("GPULESSON_DATA", str(place))
            with pytest.raises(DataError, match=r"GPULESSON_DATA is .*, which is not a folder"):
                data.data_folder()

    def test_a_file_that_is_too_long_is_not_read(self, tmp_path, contents):
        raw = store(tmp_path, contents)
        for name in (TRAIN_IMAGES, f"{TRAIN_LABELS}.gz"):
            with (raw / name).open("wb") as file:
                file.truncate(1 << 40)  # sparse
            (raw / TRAIN_LABELS).unlink(missing_ok=True)
            with pytest.raises(DataError, match=r"has 1099511627776 bytes, more than the \d+ expected there"):
                load_fashion_mnist(tmp_path)
            (raw / name).unlink()
            (raw / TRAIN_IMAGES).write_bytes(contents[TRAIN_IMAGES])


class TestNames:
    @pytest.mark.parametrize("name", ["red\x1b[31m", os.fsdecode(b"caf\xe9")], ids=["escape", "not UTF-8"])
    def test_any_name_of_a_folder_works_and_can_be_shown(self, tmp_path, contents, name):
        raw = store(tmp_path / name, contents)
        assert_all_there(load_fashion_mnist(tmp_path / name, stand_in=False))
        (raw / TEST_LABELS).write_bytes(b"")
        with pytest.raises(DataError) as caught:
            load_fashion_mnist(tmp_path / name)
        assert str(caught.value).isprintable() and TEST_LABELS in str(caught.value).encode().decode()
        (raw / TEST_LABELS).unlink()
        with pytest.raises(DataError) as missing:
            load_fashion_mnist(tmp_path / name, download=False, stand_in=False)
        assert str(missing.value).isprintable()

    @pytest.mark.parametrize("use", [load_fashion_mnist, fashion_mnist_folder])
    @pytest.mark.parametrize(
        ("folder", "error", "message"),
        [
            ("a\0b", DataError, r"the folder is 'a\\x00b', but a path cannot hold a NUL character"),
            (
                "~nobody-of-this-name/data",
                DataError,
                r"~nobody-of-this-name/data, and there is no such home.*full path",
            ),
            (__file__, DataError, r"test_data.py, which is not a folder.*name a folder"),
            ("x" * 300, DataError, "cannot read the data folder .*too long"),
            (
                7,
                TypeError,
                r"the folder is 7, but must be the path of a folder: give a string or a pathlib.Path",
            ),
            (b"data", TypeError, "the folder is a bytes, but must be the path"),
        ],
    )
    def test_what_can_be_no_folder(self, contents, use, folder, error, message):
        with pytest.raises(error, match=message):
            use(folder)

    def test_the_environments_folder(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("GPULESSON_DATA", "data")
        assert data.data_folder() == tmp_path / "data"  # and messages say where that is
        monkeypatch.setenv("GPULESSON_DATA", "~nobody-of-this-name")
        with pytest.raises(
            DataError, match="GPULESSON_DATA is ~nobody-of-this-name, and there is no such home"
        ):
            data.data_folder()

    @pytest.mark.parametrize("option", ["download", "stand_in"])
    @pytest.mark.parametrize("use", [load_fashion_mnist, fashion_mnist_folder])
    def test_options_that_are_no_flags(self, contents, tmp_path, use, option):
        with pytest.raises(TypeError, match=f"^{option} is 'no', but must be True or False"):
            use(tmp_path, **{option: "no"})


class TestDownload:
    def test_it_arrives_once_and_torchvision_can_read_it(self, tmp_path, server):
        assert_all_there(load_fashion_mnist(tmp_path, stand_in=False))
        assert sorted(set(server.requests)) == sorted(f"{name}.gz" for name in NAMES)
        server.requests.clear()
        assert_all_there(load_fashion_mnist(tmp_path, stand_in=False))
        assert server.requests == []  # nothing is fetched twice
        theirs = FashionMNIST(tmp_path, train=False, download=False)
        assert np.array_equal(theirs.data.numpy(), arrays()[TEST_IMAGES])

    def test_others_may_read_what_was_fetched(self, tmp_path, server):
        load_fashion_mnist(tmp_path, stand_in=False)
        raw = tmp_path / "FashionMNIST" / "raw"
        ordinary = tmp_path / "ordinary"
        ordinary.touch()
        expected = stat.S_IMODE(ordinary.stat().st_mode)
        assert {stat.S_IMODE(path.stat().st_mode) for path in raw.iterdir()} == {expected}

    @pytest.mark.parametrize("watched", [True, False])
    def test_a_person_sees_progress(self, tmp_path, server, monkeypatch, capsys, watched):
        monkeypatch.setattr(_fashion, "person_watches", lambda: watched)
        load_fashion_mnist(tmp_path, stand_in=False)
        assert ("100%" in capsys.readouterr().err) is watched

    def test_what_is_there_stays(self, tmp_path, server, contents):
        raw = store(tmp_path, contents, TRAIN_IMAGES, f"{TRAIN_LABELS}.gz", TEST_IMAGES)
        before = {path: path.stat().st_mtime_ns for path in raw.iterdir()}
        assert_all_there(load_fashion_mnist(tmp_path, stand_in=False))
        assert {path: path.stat().st_mtime_ns for path in raw.iterdir() if path.name != TEST_LABELS} == before

    def test_the_next_mirror_is_asked(self, tmp_path, server, monkeypatch):
        monkeypatch.setattr(_fashion, "MIRRORS", ["http://127.0.0.1:9/"])
        monkeypatch.setattr(FashionMNIST, "mirrors", [server.url])
        assert_all_there(load_fashion_mnist(tmp_path, stand_in=False))

    @pytest.mark.parametrize(
        ("how", "why"),
        [("missing", "404"), ("stall", "timed out"), ("corrupt", "corrupted"), ("cut", "corrupted")],
    )
    def test_a_download_that_fails_leaves_nothing_and_can_be_repeated(
        self, tmp_path, contents, server, monkeypatch, how, why
    ):
        raw = store(tmp_path, contents, TRAIN_IMAGES)
        server.how = how
        with monkeypatch.context() as patch, pytest.raises(MissingDataError) as caught:
            if how == "stall":  # all other requests may take their time on a busy machine
                patch.setattr(_fashion, "TIMEOUT", 0.3)
            load_fashion_mnist(tmp_path, stand_in=False)
        assert f"{raw} has no {TRAIN_LABELS}, {TEST_IMAGES}, {TEST_LABELS}" in str(caught.value)
        assert why in str(caught.value) and str(caught.value).isprintable()
        assert {path.name for path in raw.iterdir()} == {TRAIN_IMAGES} and socket.getdefaulttimeout() is None
        server.how = "serve"
        assert_all_there(load_fashion_mnist(tmp_path, stand_in=False))

    def test_what_has_another_sha256_is_refused(self, tmp_path, server, monkeypatch):
        """Even if its MD5, at which torchvision looks, is right."""
        other = dataclasses.replace(_fashion.FILES[TEST_LABELS], packed_sha256="0" * 64)
        monkeypatch.setitem(_fashion.FILES, TEST_LABELS, other)
        with pytest.raises(DataError, match=rf"{TEST_LABELS}.gz is .*altered.* expected 0000"):
            load_fashion_mnist(tmp_path)
        assert not (tmp_path / "FashionMNIST" / "raw" / TEST_LABELS).exists()

    def test_it_is_asked_for_over_https_first_and_by_torchvisions_names(self):
        assert all(mirror.startswith("https://") for mirror in _fashion.MIRRORS)
        assert [f"{name}.gz" for name in _fashion.FILES] == [name for name, _ in FashionMNIST.resources]
        assert list(_fashion.CLASSES) == FashionMNIST.classes


class TestNoPlaceToWrite:
    def places(tmp_path: Path) -> list[Path]:  # permissions do not stop root, these do
        (tmp_path / "file").touch()
        below_a_file = tmp_path / "file" / "data"
        return [below_a_file, Path("/proc/gpulesson")] if Path("/proc/self").exists() else [below_a_file]

    @pytest.mark.parametrize("which", [0, 1])
    def test_it_is_said_instead_of_going_on(self, tmp_path, server, monkeypatch, which):
        places = TestNoPlaceToWrite.places(tmp_path)
        if which == len(places):
            pytest.skip("needs /proc, where even root cannot make a folder")
        monkeypatch.setenv("GPULESSON_DATA", str(places[which]))
        with pytest.raises(DataError) as caught:
            load_fashion_mnist()  # the stand-in is allowed, but must not hide it
        assert re.search(f"cannot (read|write to) the data folder {places[which]}", str(caught.value))
        assert "et the environment variable GPULESSON_DATA to a" in str(caught.value)
        assert server.requests == []  # found out before 30 MB are on their way

    def test_a_folder_that_may_not_be_written_to(self, tmp_path, server, monkeypatch):
        monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may always
        with pytest.raises(
            DataError, match=r"cannot write to the data folder .*Permission denied.*GPULESSON_DATA"
        ):
            load_fashion_mnist(tmp_path)
        assert server.requests == []

    def test_a_disk_that_fills_up(self, tmp_path, server, monkeypatch):
        fill_the_disk(monkeypatch, _fashion)
        with pytest.raises(DataError, match=r"cannot write.*No space left"):
            load_fashion_mnist(tmp_path)
        monkeypatch.undo()
        assert not list((tmp_path / "FashionMNIST" / "raw").iterdir())


class TestExcerpt:
    def test_without_network_it_is_used_without_a_word(self, tmp_path, capfd):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            images = load_fashion_mnist(tmp_path, download=False)
        assert images.source == "fashion-mnist excerpt, 6000/1000"
        assert images.train_images.shape == (6000, 28, 28) and images.test_images.shape == (1000, 28, 28)
        assert images.train_targets.bincount().tolist() == [600] * 10
        assert images.test_targets.bincount().tolist() == [100] * 10
        assert capfd.readouterr() == ("", "")

    def test_it_is_the_first_of_each_class_of_the_genuine_data(self, genuine_data, tmp_path):
        genuine = load_fashion_mnist(genuine_data, download=False, stand_in=False)
        ours = load_fashion_mnist(tmp_path, download=False)
        for part, each in (("train", 600), ("test", 100)):
            images, targets = (getattr(genuine, f"{part}_{kind}").numpy() for kind in ("images", "targets"))
            first = np.sort(np.concatenate([np.flatnonzero(targets == kind)[:each] for kind in range(10)]))
            assert np.array_equal(getattr(ours, f"{part}_images").numpy(), images[first])
            assert np.array_equal(getattr(ours, f"{part}_targets").numpy(), targets[first])

    def test_its_licence_lies_beside_it_and_it_is_small(self):
        assert "Zalando" in (_fashion.EXCERPT / "LICENSE").read_text("utf-8")
        assert "github.com/zalandoresearch" in (_fashion.EXCERPT / "README.md").read_text("utf-8")
        assert sum(path.stat().st_size for path in _fashion.EXCERPT.iterdir()) < 3_000_000

    def test_without_leave_to_download(self, tmp_path, server):
        load_fashion_mnist(tmp_path, download=False)
        with pytest.raises(
            DataError, match=r"switched off: allow it \(download=True\), or copy the files there"
        ):
            load_fashion_mnist(tmp_path, download=False, stand_in=False)
        assert server.requests == [] and list(tmp_path.iterdir()) == []

    def test_what_could_not_be_fetched_is_not_asked_for_twice(self, tmp_path, server):
        server.how = "missing"
        for use in (load_fashion_mnist, fashion_mnist_folder):
            use(tmp_path)
        assert set(server.requests) == {f"{TRAIN_IMAGES}.gz"}
        asked = len(server.requests)
        load_fashion_mnist(tmp_path)
        assert len(server.requests) == asked
        server.how = "serve"
        assert_all_there(load_fashion_mnist(tmp_path, stand_in=False))

    def test_damaged_data_is_never_replaced_by_it(self, tmp_path, contents):
        raw = store(tmp_path, contents)
        (raw / TEST_LABELS).write_bytes(b"")
        with pytest.raises(DataError, match="t10k-labels"):
            load_fashion_mnist(tmp_path, download=False, stand_in=True)


def seen_by_torchvision(folder: Path) -> list[np.ndarray]:
    """What torchvision's own class finds in the folder, where it may neither download nor unpack."""
    found = []
    for train in (True, False):
        theirs = FashionMNIST(folder, train=train, download=False)
        found += [theirs.data.numpy(), theirs.targets.numpy()]
    return found


class TestFolderForTorchvision:
    @pytest.fixture
    def cache(self, monkeypatch, tmp_path) -> Path:
        """Where the excerpt is written, instead of the cache of whoever runs the tests."""
        import pooch

        monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache" / name)
        return tmp_path / "cache" / "gpulesson-excerpt"

    @pytest.mark.parametrize("how", ["unpacked", "packed", "both", "to be fetched"])
    def test_torchvision_reads_what_the_loader_reads(self, tmp_path, contents, server, how):
        packed = [f"{name}.gz" for name in NAMES]
        names = {"unpacked": NAMES, "packed": packed, "both": [*NAMES, *packed], "to be fetched": []}[how]
        for name in names:
            store(tmp_path, contents, name)
        assert fashion_mnist_folder(tmp_path, stand_in=False) == tmp_path
        found = seen_by_torchvision(tmp_path)
        assert bool(server.requests) == (how == "to be fetched")
        for one, expected in zip(found, arrays().values(), strict=True):
            assert np.array_equal(one, expected)
        assert_all_there(load_fashion_mnist(tmp_path, download=False, stand_in=False))
        raw = tmp_path / "FashionMNIST" / "raw"
        assert {path.name for path in raw.iterdir()} <= {*NAMES, *packed}  # no half file is left

    def test_the_environment_names_it(self, monkeypatch, tmp_path, contents):
        store(tmp_path, contents)
        monkeypatch.setenv("GPULESSON_DATA", str(tmp_path))
        assert fashion_mnist_folder(download=False, stand_in=False) == tmp_path

    def test_damaged_data_is_found_before_torchvision_reads_it(self, tmp_path, contents, cache):
        raw = store(tmp_path, contents, *contents)
        altered = bytearray(contents[TRAIN_IMAGES])
        altered[-1] ^= 1
        (raw / TRAIN_IMAGES).write_bytes(altered)
        with pytest.raises(DataError, match=f"{TRAIN_IMAGES} is altered"):
            fashion_mnist_folder(tmp_path)
        assert not cache.exists()

    def test_packed_files_that_cannot_be_unpacked(self, tmp_path, contents, monkeypatch):
        raw = store(tmp_path, contents, *[f"{name}.gz" for name in NAMES])
        fill_the_disk(monkeypatch, _fashion)
        load_fashion_mnist(tmp_path)  # which needs no unpacked file
        with pytest.raises(DataError) as caught:
            fashion_mnist_folder(tmp_path)
        assert str(raw / TRAIN_IMAGES) in str(caught.value) and "No space left" in str(caught.value)
        assert "Set the environment variable GPULESSON_DATA" in str(caught.value)

    def test_without_data_it_is_the_excerpt_elsewhere(self, tmp_path, cache):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            folder = fashion_mnist_folder(tmp_path / "data", download=False)
        assert folder == cache and not (tmp_path / "data").exists()
        images = load_fashion_mnist(folder, download=False, stand_in=False)
        assert images.source == "fashion-mnist excerpt, 6000/1000"
        assert np.array_equal(seen_by_torchvision(folder)[2], images.test_images.numpy())

    @pytest.mark.parametrize("harm", ["nothing", "a bit", "a file", "a half"])
    def test_what_is_wrong_with_it_is_written_anew(self, tmp_path, cache, harm):
        raw = fashion_mnist_folder(tmp_path, download=False) / "FashionMNIST" / "raw"
        whole = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in raw.iterdir()}
        content, _ = whole[TEST_LABELS]
        if harm == "a file":
            (raw / TEST_LABELS).unlink()
        elif harm != "nothing":
            harmed = content[:500] if harm == "a half" else content[:-1] + bytes([content[-1] ^ 1])
            (raw / TEST_LABELS).write_bytes(harmed)
        fashion_mnist_folder(tmp_path, download=False)
        for path in raw.iterdir():
            assert path.read_bytes() == whole[path.name][0]
            touched = path.stat().st_mtime_ns != whole[path.name][1]
            assert touched == (harm != "nothing" and path.name == TEST_LABELS)

    def test_where_it_cannot_be_written(self, tmp_path, cache, monkeypatch):
        fill_the_disk(monkeypatch, _fashion, at="t10k")
        with pytest.raises(DataError, match=r"cannot write the excerpt of .*No space left"):
            fashion_mnist_folder(tmp_path, download=False)
        assert {path.name for path in (cache / "FashionMNIST" / "raw").iterdir()} == {
            TRAIN_IMAGES,
            TRAIN_LABELS,
        }

    def test_genuine_data(self, genuine_data):
        folder = fashion_mnist_folder(genuine_data, download=False, stand_in=False)
        images = load_fashion_mnist(genuine_data, download=False, stand_in=False)
        assert folder == genuine_data
        train_images, train_targets, test_images, test_targets = seen_by_torchvision(folder)
        assert np.array_equal(train_images, images.train_images.numpy())
        assert np.array_equal(train_targets, images.train_targets.numpy())
        assert np.array_equal(test_images, images.test_images.numpy())
        assert np.array_equal(test_targets, images.test_targets.numpy())


class TestMissingLibraries:
    def test_the_error_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
        with pytest.raises(DataError, match=r"needs sklearn, .*Install it: pip install scikit-learn$"):
            load_iris()


class TestIris:
    def test_it_is_scikit_learns(self):
        from sklearn.datasets import load_iris as theirs

        ours, expected = load_iris(), theirs()
        assert ours.features.dtype == torch.float32 and ours.targets.dtype == torch.int64
        assert np.array_equal(ours.features.numpy(), expected.data.astype(np.float32))
        assert ours.targets.tolist() == expected.target.tolist()
        assert ours.class_names == ("setosa", "versicolor", "virginica")
        assert "widely copied" not in ours.source

    def test_the_widely_copied_file_differs_in_two_samples(self):
        original, copied = load_iris(), load_iris(widely_copied=True)
        changed = (original.features != copied.features).any(1).nonzero().flatten().tolist()
        assert changed == [34, 37]
        assert torch.equal(copied.features[34], torch.tensor([4.9, 3.1, 1.5, 0.1]))
        assert torch.equal(copied.features[37], torch.tensor([4.9, 3.1, 1.5, 0.1]))
        assert torch.equal(original.features[34], torch.tensor([4.9, 3.1, 1.5, 0.2]))
        assert torch.equal(original.features[37], torch.tensor([4.9, 3.6, 1.4, 0.1]))
        assert "34 and 37" in copied.source

    def test_the_option_is_a_flag(self):
        with pytest.raises(TypeError, match=r"^widely_copied is 'no', but must be True or False"):
            load_iris(widely_copied="no")


class TestBatches:
    def test_in_order_without_copies(self):
        x, y = torch.arange(10.0).view(10, 1), torch.arange(10)
        batches = list(Batches(x, y, batch_size=4))
        assert [len(inputs) for inputs, _ in batches] == [4, 4, 2]
        assert torch.equal(torch.cat([inputs for inputs, _ in batches]), x)
        assert batches[1][1].data_ptr() == y[4:].data_ptr()

    @pytest.mark.parametrize(
        ("n", "size", "drop_last"),
        [(10, 4, False), (10, 4, True), (8, 4, False), (3, 4, True), (0, 4, False)],
    )
    def test_its_length_is_the_number_of_batches(self, n, size, drop_last):
        batches = Batches(torch.arange(n), batch_size=size, drop_last=drop_last)
        expected = n // size if drop_last else -(-n // size)
        assert len(batches) == len(list(batches)) == expected
        if drop_last:
            assert all(len(inputs) == size for (inputs,) in batches)

    def test_shuffled_each_sample_comes_once_beside_its_own_target(self):
        x = torch.arange(100)
        batches = Batches(x, x * x, batch_size=7, shuffle=True)
        passes = [torch.cat([inputs for inputs, _ in batches]) for _ in range(3)]
        for order in passes:
            assert torch.equal(order.sort().values, x)
        assert len({tuple(order.tolist()) for order in passes}) == 3  # a fresh permutation a pass
        assert all(torch.equal(inputs * inputs, targets) for inputs, targets in batches)

    def test_shuffled_images_keep_their_memory_format(self):
        images = torch.randn(8, 3, 4, 4).to(memory_format=torch.channels_last)
        generator = torch.Generator()
        batches = Batches(images, batch_size=4, shuffle=True, generator=generator.manual_seed(0))
        found = [part for (part,) in batches]
        order = torch.randperm(8, generator=generator.manual_seed(0))
        assert torch.equal(torch.cat(found), images[order])
        assert all(part.is_contiguous(memory_format=torch.channels_last) for part in found)

    def test_a_generator_makes_it_repeatable(self):
        def two_passes(seed: int) -> list[list[int]]:
            generator = torch.Generator().manual_seed(seed)
            batches = Batches(torch.arange(20), batch_size=6, shuffle=True, generator=generator)
            return [part.tolist() for _ in range(2) for (part,) in batches]

        state = torch.get_rng_state()
        assert two_passes(1) == two_passes(1) != two_passes(2)
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize(
        ("tensors", "message"),
        [
            ((), r"one length.*found no tensor: give inputs and targets"),
            ((torch.zeros(3), torch.zeros(4)), r"one length.*\(3,\), \(4,\): give inputs and targets"),
            ((torch.tensor(1.0),), "one length"),
            ((torch.zeros(3), torch.zeros(3, device="meta")), r"one device, found cpu, meta.*\.to\(device\)"),
        ],
    )
    def test_tensors_that_do_not_fit_together(self, tensors, message):
        with pytest.raises(ValueError, match=message):
            Batches(*tensors, batch_size=2)

    def test_a_transform_sees_the_inputs_of_one_batch_at_a_time(self):
        images, targets = torch.arange(10, dtype=torch.uint8), torch.arange(10, dtype=torch.uint8)
        seen = []

        def as_floats(part):
            seen.append(len(part))
            return part.float() / 255

        batches = Batches(images, targets, batch_size=4, shuffle=True, transform=as_floats)
        found = list(batches)
        assert seen == [4, 4, 2]
        for inputs, labels in found:
            assert torch.equal(inputs, (images.float() / 255)[labels.long()])  # as if converted before
            assert labels.dtype == torch.uint8
        assert batches.tensors[0] is images

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"batch_size": 0}, "batch_size=0: give the number of samples in a batch, 1 or more"),
            ({"batch_size": 64.0}, "batch_size=64.0 is of the type float, not a whole number"),
            ({"shuffle": "yes"}, "shuffle is 'yes', but must be True or False"),
            ({"drop_last": None}, "drop_last is None, but must be True or False"),
            ({"generator": 42}, r"generator is 42, but must be .* give torch.Generator\(\).manual_seed\(0\)"),
            ({"transform": "scale"}, "transform is 'scale', but must be a function: give one of the inputs"),
        ],
    )
    def test_options_that_make_no_sense(self, options, message):
        with pytest.raises((TypeError, ValueError), match=f"^{message}"):
            Batches(torch.zeros(3), **{"batch_size": 2, **options})

    @pytest.mark.parametrize(
        ("tensors", "found"),
        [
            ((np.zeros(3), torch.zeros(3)), r"argument 1 .* is a NumPy array float64 \[3\]"),
            (((torch.zeros(3), torch.zeros(3)),), "argument 1 .* is a tuple of 2"),
            ((torch.zeros(3), None), "argument 2 .* is None"),
        ],
    )
    def test_what_is_no_tensor(self, tensors, found):
        with pytest.raises(TypeError, match=rf"^{found}.*, but must be a tensor: .*torch.as_tensor\("):
            Batches(*tensors, batch_size=2)

    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize(
        ("transform", "error", "message"),
        [
            (lambda x: None, TypeError, r"returned is None, but must be a tensor of 2 .*end with return\?"),
            (lambda x: x.numpy(), TypeError, "the transform returned is a NumPy array"),
            (lambda x: x[:1], ValueError, r"the transform made a tensor \[1, 2\] of one \[2, 2\]"),
            (lambda x: x.sum(), ValueError, r"the transform made a tensor \[\] of one \[2, 2\]"),
        ],
    )
    def test_a_transform_that_makes_something_else(self, shuffle, transform, error, message):
        batches = Batches(torch.ones(4, 2), batch_size=2, shuffle=shuffle, transform=transform)
        with pytest.raises(error, match=message):
            next(iter(batches))

    @pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
    def test_a_transform_cannot_change_the_data(self, mode):
        with mode():
            images = torch.ones(6, 2)
            for _ in range(2):
                with pytest.raises(ValueError, match=r"changes its batch in place.*images\.clone\(\)"):
                    list(Batches(images, batch_size=2, transform=lambda x: x.mul_(0)))
            assert torch.equal(images, torch.ones(6, 2))
            changed = Batches(images, batch_size=2, shuffle=True, transform=lambda x: x.mul_(0))
            assert all(not part.any() for (part,) in changed)  # of a shuffled batch nobody else knows
            assert torch.equal(images, torch.ones(6, 2))

    def test_a_transform_that_goes_through_numpy_cannot_change_the_data(self):
        images = torch.tensor([[float("nan"), 1], [2, 3]])
        before = images.clone()

        def without_nan(x):
            np.nan_to_num(x.numpy(), copy=False)  # which torch does not count
            return x + 0

        with pytest.raises(ValueError, match="changes its batch in place"):
            list(Batches(images, batch_size=2, transform=without_nan))
        assert torch.equal(images.isnan(), before.isnan())
        list(Batches(images, batch_size=2, transform=lambda x: x + 0))  # NaN itself is no change

    @pytest.mark.gpu
    def test_on_a_gpu_nothing_waits_and_the_order_is_the_cpus(self):
        def order(device: str) -> torch.Tensor:
            generator = torch.Generator().manual_seed(3)
            batches = Batches(
                torch.arange(1000, device=device), batch_size=64, shuffle=True, generator=generator
            )
            return torch.cat([part for (part,) in batches]).cpu()

        assert torch.equal(order("cuda"), order("cpu"))
        resident = Batches(torch.arange(1000, device="cuda"), batch_size=64, shuffle=True)
        torch.cuda.set_sync_debug_mode("error")
        try:
            assert all(part.is_cuda for (part,) in resident)
        finally:
            torch.cuda.set_sync_debug_mode("default")
