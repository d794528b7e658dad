from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import FashionMNIST

from gpulesson.data import Batches, DataError, excerpt_folder, load_fashion_mnist, load_iris

RAW = Path("FashionMNIST", "raw")
NAMES = [name.removesuffix(".gz") for name, _ in FashionMNIST.resources]
CHECKSUMS = {  # of the excerpt's files; the printed numbers of all lessons depend on them
    "train-images-idx3-ubyte": "cae7193a8e3dd75966f4b1f38d78ca94",
    "train-labels-idx1-ubyte": "1641b7f3205a263b146be7f1df295e66",
    "t10k-images-idx3-ubyte": "c5442ce2f064c32bf3ec2983a505322f",
    "t10k-labels-idx1-ubyte": "a00963b89d54a5ab6dc42b2b2c57c0e7",
}


class TestExcerpt:
    def test_its_files_are_those_that_the_lessons_were_written_with(self):
        files = [path for path in (excerpt_folder() / RAW).iterdir() if path.is_file()]
        assert {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in files} == CHECKSUMS

    def test_it_is_loaded_without_network_and_without_a_word(self, monkeypatch, capfd, recwarn):
        monkeypatch.setattr(FashionMNIST, "download", None)
        images = load_fashion_mnist()
        assert images.source == "fashion-mnist excerpt, 6000/1000"
        assert images.train_images.shape == (6000, 28, 28) and images.test_images.shape == (1000, 28, 28)
        assert images.train_images.dtype == images.test_images.dtype == torch.uint8
        assert images.train_targets.dtype == images.test_targets.dtype == torch.int64
        assert images.train_targets.bincount().tolist() == [600] * 10
        assert images.test_targets.bincount().tolist() == [100] * 10
        # the first training image is an ankle boot, as in the paper's own listing
        assert images.class_names[images.train_targets[0]] == "Ankle boot" and len(images.class_names) == 10
        assert capfd.readouterr() == ("", "") and not recwarn.list

    @pytest.mark.parametrize("download", [False, True])
    def test_torchvisions_class_reads_it_and_writes_nothing(self, monkeypatch, download):
        monkeypatch.setattr(FashionMNIST, "mirrors", [])
        before = sorted(excerpt_folder().rglob("*"))
        ours = load_fashion_mnist()
        for train, images in ((True, ours.train_images), (False, ours.test_images)):
            theirs = FashionMNIST(excerpt_folder(), train=train, download=download)
            assert torch.equal(theirs.data, images)
        assert sorted(excerpt_folder().rglob("*")) == before

    def test_its_licence_lies_beside_it(self):
        assert "Zalando" in (excerpt_folder() / "LICENSE").read_text("utf-8")
        assert "github.com/zalandoresearch" in (excerpt_folder() / "README.md").read_text("utf-8")


class TestFolder:
    """One in torchvision's layout: it has the data, or gets them."""

    @pytest.fixture
    def published(self, monkeypatch, tmp_path) -> Iterator[Path]:
        """What a server of this machine has, to download from: the excerpt's files, packed."""
        place, resources = tmp_path / "published", []
        place.mkdir()
        for name in NAMES:
            packed = gzip.compress((excerpt_folder() / RAW / name).read_bytes(), 1)
            (place / f"{name}.gz").write_bytes(packed)
            resources.append((f"{name}.gz", hashlib.md5(packed).hexdigest()))
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=place)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, args=[0.02]).start()
            monkeypatch.setattr(FashionMNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
            monkeypatch.setattr(FashionMNIST, "resources", resources)
            yield place
            server.shutdown()

    @pytest.mark.parametrize("kind", [str, Path])
    def test_what_is_missing_is_downloaded_once(self, published, tmp_path, kind):
        images = load_fashion_mnist(kind(tmp_path / "data"))
        assert torch.equal(images.train_images, load_fashion_mnist().train_images)
        shutil.rmtree(published)
        again = load_fashion_mnist(kind(tmp_path / "data"))
        assert torch.equal(again.test_targets, images.test_targets)

    def test_what_is_there_is_read_without_a_network_and_left_as_it_is(self, tmp_path, monkeypatch):
        shutil.copytree(excerpt_folder(), tmp_path / "data")
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        monkeypatch.setattr(FashionMNIST, "mirrors", [])
        assert load_fashion_mnist(tmp_path / "data").source == "fashion-mnist excerpt, 6000/1000"
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before

    def test_all_of_it_is_not_called_an_excerpt(self, monkeypatch):
        def load(self):
            count = 60_000 if self.train else 10_000
            return torch.zeros(1, 28, 28).expand(count, 28, 28), torch.zeros(1).expand(count)

        monkeypatch.setattr(FashionMNIST, "_load_data", load)
        assert load_fashion_mnist(excerpt_folder()).source == "fashion-mnist, 60000/10000"

    def test_where_nothing_can_be_downloaded_the_message_names_the_excerpt(self, published, tmp_path):
        shutil.rmtree(published)
        with pytest.raises(DataError) as caught:
            load_fashion_mnist(tmp_path / "data")
        message = str(caught.value)
        assert f"in {tmp_path / 'data'} nor download" in message and "404" in message
        assert "Without a folder, the excerpt that the package brings is loaded." in message
        assert message.isprintable()

    @pytest.mark.parametrize("name", ["train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"])
    @pytest.mark.parametrize("left", [0, 500])
    def test_a_file_that_is_cut_short(self, tmp_path, name, left):
        raw = Path(shutil.copytree(excerpt_folder() / RAW, tmp_path / RAW))
        (raw / name).write_bytes((raw / name).read_bytes()[:left])
        with pytest.raises(DataError, match=r"neither read .* delete them and run again"):
            load_fashion_mnist(tmp_path)

    def test_images_and_labels_of_different_sets(self, tmp_path):
        raw = Path(shutil.copytree(excerpt_folder() / RAW, tmp_path / RAW))
        shutil.copy(raw / "train-labels-idx1-ubyte", raw / "t10k-labels-idx1-ubyte")
        with pytest.raises(DataError, match=r"holds 1000 images, but 6000 labels.*Delete them"):
            load_fashion_mnist(tmp_path)

    @pytest.mark.parametrize("folder", [7, b"data"])
    def test_what_is_no_path(self, folder):
        with pytest.raises(TypeError, match=r"^the folder is .* must be the path of a folder: give a string"):
            load_fashion_mnist(folder)


@pytest.mark.parametrize(
    ("module", "load", "message"),
    [
        ("sklearn.datasets", load_iris, r"needs sklearn, .*Install it: pip install scikit-learn$"),
        ("torchvision.datasets", load_fashion_mnist, r"needs torchvision, .*: pip install torchvision$"),
    ],
)
def test_a_missing_library_is_named_with_how_to_install_it(monkeypatch, module, load, message):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=message):
        load()


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
