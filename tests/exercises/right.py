"""Right programs in other styles than the solutions, written without a look at the check: each must pass."""

RIGHT = {
    "01": (
        """import torch

def pick_device():
    return ('cpu', 'cuda')[torch.cuda.is_available()]

def scores(count, device):
    made = {name: make(rows, 784, device=device) for name, make, rows in (('weights', torch.randn, 10), ('images', torch.rand, count))}
    return torch.stack([made['weights'] @ image for image in made['images']])
""",
        """import torch
from dataclasses import dataclass
import torch.nn.functional as F
PIXELS = 28 * 28
CLASSES = 10

@dataclass
class Maker:
    device: torch.device

    def weights(self) -> torch.Tensor:
        return torch.randn((CLASSES, PIXELS), device=self.device, dtype=torch.float32)

    def images(self, n: int) -> torch.Tensor:
        return torch.rand((n, PIXELS), device=self.device, dtype=torch.float32)

def pick_device(index: int | None=None, verbose: bool=False) -> torch.device:
    found = torch.accelerator.current_accelerator(check_available=True)
    chosen = torch.device('cpu')
    if found is not None and found.type == 'cuda':
        chosen = torch.device('cuda', torch.cuda.current_device() if index is None else index)
    if verbose:
        print(f'chosen: {chosen}')
    return chosen

def scores(count: int, device: torch.device | str, maker: Maker | None=None) -> torch.Tensor:
    maker = maker or Maker(torch.device(device))
    x = maker.images(count)
    w = maker.weights()
    return F.linear(x, w)
""",
        """import torch

def pick_device():
    try:
        torch.cuda.current_device()
    except (RuntimeError, AssertionError):
        return 'cpu'
    return 'cuda:0'

@torch.no_grad()
def scores(count, device):
    with torch.device(device):
        images = torch.rand(count, 784)
        product = torch.einsum('np,cp->nc', images, (weights := torch.randn(10, 784)))
    del images, weights
    return product
""",
    ),
    "02": (
        """ANSWERS = dict.fromkeys('abcdefgh', 'cuda:0') | dict.fromkeys('adef', 'cpu')

def bring(model, batch, device):
    return dict(zip(batch, map(lambda t: t.to(device), batch.values()))) if model.to(device) else None
""",
        """import torch
CPU, GPU = ('cpu', 'cuda:0')
ANSWERS = dict(a=CPU, b=GPU, c=GPU, d=CPU, e=CPU, f=CPU, g=GPU, h=GPU)

def bring(model: torch.nn.Module, batch: dict[str, torch.Tensor], device: torch.device, dtype: torch.dtype | None=None) -> dict[str, torch.Tensor]:
    from gpulesson.device import to_device
    net = model.to(device, non_blocking=False)
    if dtype is not None:
        net.to(dtype)
    return to_device(batch, device)
""",
    ),
    "03": (
        """import torch
from torch import nn

def one_epoch(model, X, y, loss_fn, optimizer):
    optimizer.zero_grad()
    loss = loss_fn(model(X), y)
    loss.backward()
    optimizer.step()
    return loss.item()

def train(model, X, y, loss_fn, optimizer, epochs):
    model.train()
    return [one_epoch(model, X, y, loss_fn, optimizer) for _ in range(epochs)]

def accuracy(model, X, y):
    with torch.inference_mode():
        return (model.eval()(X).max(dim=1).indices == y).float().mean().item()

def run(make_model, X_train, y_train, X_test, y_test, device, epochs, seed):
    torch.manual_seed(seed)
    model = make_model().to(device)
    flowers = [part.to(device) for part in (X_train, y_train, X_test, y_test)]
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    train(model, *flowers[:2], nn.CrossEntropyLoss(), optimizer, epochs)
    return accuracy(model, *flowers[2:])
""",
        """import torch
from torch import nn
from collections.abc import Callable
import torch.nn.functional as F
from sklearn.metrics import accuracy_score
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

class Trainer:

    def __init__(self, model: nn.Module, loss_fn: Callable, optimizer) -> None:
        self.model, self.loss_fn, self.optimizer = (model, loss_fn, optimizer)
        self.history: list[float] = []

    def step(self, features: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss_fn(self.model(features), labels)
        loss.backward()
        self.optimizer.step()
        self.history.append(float(loss.detach()))

def train(model: nn.Module, X: Tensor, y: Tensor, loss_fn: Callable, optimizer: torch.optim.Optimizer, epochs: int, verbose: bool=False) -> list[float]:
    trainer = Trainer(model.train(), loss_fn, optimizer)
    whole = DataLoader(TensorDataset(X, y), batch_size=len(X))
    for epoch in range(epochs):
        for features, labels in whole:
            trainer.step(features, labels)
        if verbose:
            print(epoch, trainer.history[-1])
    return trainer.history

@torch.no_grad()
def accuracy(model: nn.Module, X: Tensor, y: Tensor) -> float:
    model.eval()
    answers = torch.softmax(model(X), dim=-1).argmax(dim=-1)
    return float(accuracy_score(y.cpu(), answers.cpu()))

def run(make_model: Callable[[], nn.Module], X_train: Tensor, y_train: Tensor, X_test: Tensor, y_test: Tensor, device: torch.device | str, epochs: int, seed: int, lr: float=0.02) -> float:
    torch.manual_seed(seed)
    network = make_model()
    network = network.to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=lr, weight_decay=0.0001)
    train(network, X_train.to(device), y_train.to(device), F.cross_entropy, optimizer, epochs)
    return accuracy(network, X_test.to(device), y_test.to(device))
""",
    ),
    "04": (
        """import torch
from torch import nn
from torch.utils.data import DataLoader

def train_step(model, inputs, targets, loss_fn, optimizer, device):
    optimizer.zero_grad()
    (loss := loss_fn(model.train()(inputs.to(device)), targets.to(device))).backward()
    optimizer.step()
    return loss.item()

def accuracy(model, batches, device):
    model.eval()
    with torch.inference_mode():
        hits = [model(x.to(device)).argmax(dim=1).cpu() == t.cpu() for x, t in batches]
    return torch.cat(hits).double().mean().item()

def run(model, train_set, test_set, device, epochs):
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    loader = DataLoader(train_set, 16, shuffle=True)
    _ = [train_step(model, *batch, nn.CrossEntropyLoss(), optimizer, device) for _ in range(epochs) for batch in loader]
    return accuracy(model, DataLoader(test_set, 64), device)
""",
        """import torch
from torch import nn
from torch.utils.data import DataLoader
from collections.abc import Callable, Iterable
from dataclasses import dataclass
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import BatchSampler, Dataset, RandomSampler
from gpulesson.device import to_device

@dataclass
class Meter:
    hits: Tensor | int = 0
    rows: int = 0

    def add(self, logits: Tensor, labels: Tensor) -> None:
        self.hits = self.hits + torch.eq(logits.argmax(-1), labels).count_nonzero()
        self.rows += labels.size(0)

    def value(self) -> float:
        return int(self.hits) / self.rows

def train_step(model: nn.Module, inputs: Tensor, targets: Tensor, loss_fn: Callable[[Tensor, Tensor], Tensor], optimizer: torch.optim.Optimizer, device: torch.device | str, *, set_to_none: bool=True) -> float:
    model.train()
    inputs, targets = to_device((inputs, targets), device)
    optimizer.zero_grad(set_to_none=set_to_none)
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return float(loss.detach())

@torch.inference_mode()
def accuracy(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: torch.device | str) -> float:
    model.eval()
    meter = Meter()
    for batch in batches:
        inputs, targets = to_device(tuple(batch), device)
        meter.add(model(inputs), targets)
    return meter.value()

def run(model: nn.Module, train_set: Dataset, test_set: Dataset, device: torch.device | str, epochs: int, *, batch_size: int=24, lr: float=0.002) -> float:
    model.to(device)
    sampler = BatchSampler(RandomSampler(train_set), batch_size, drop_last=False)
    pin = torch.cuda.is_available()
    train_loader = DataLoader(train_set, batch_sampler=sampler, pin_memory=pin)
    test_loader = DataLoader(test_set, batch_size=256, pin_memory=pin)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(epochs):
        for inputs, targets in train_loader:
            train_step(model, inputs, targets, F.cross_entropy, optimizer, device)
    return accuracy(model, test_loader, device)
""",
    ),
    "05": (
        """import torch

def per_class(confusion):
    return (confusion.diagonal() / confusion.sum(dim=1)).tolist()

def hardest(accuracies, class_names):
    order = sorted(range(len(accuracies)), key=lambda i: accuracies[i])
    return [class_names[i] for i in order]

def class_accuracies(model, batches, number_of_classes, device):
    n = number_of_classes
    model.eval()
    with torch.inference_mode():
        cells = [y.long() * n + model(x.to(device)).argmax(1).cpu() for x, y in batches]
    counts = torch.bincount(torch.cat(cells), minlength=n * n)
    return per_class(counts.reshape(n, n))
""",
        """import torch
from collections.abc import Iterable, Sequence
from sklearn.metrics import confusion_matrix
from torch import Tensor, nn

def per_class(confusion: Tensor, digits: int | None=None) -> list[float]:
    shares = torch.diagonal(confusion).double() / torch.sum(confusion, 1).double()
    return [x if digits is None else round(x, digits) for x in shares.tolist()]

def hardest(accuracies: Sequence[float], class_names: Sequence[str]) -> list[str]:
    return [class_names[i] for i in torch.tensor(accuracies, dtype=torch.float64).argsort().tolist()]

class Predictor:

    def __init__(self, model: nn.Module, device: torch.device | str) -> None:
        self.model = model.eval()
        self.device = device

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        return self.model(images.to(self.device)).topk(1, dim=1).indices.squeeze(1)

def class_accuracies(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], number_of_classes: int, device: torch.device | str) -> list[float]:
    predict = Predictor(model, device)
    truths, answers = ([], [])
    for images, labels in batches:
        answers += predict(images).tolist()
        truths += labels.tolist()
    table = confusion_matrix(truths, answers, labels=list(range(number_of_classes)))
    return per_class(torch.from_numpy(table))
""",
    ),
    "06": (
        """from pathlib import Path
import torch

def save(path, model, optimizer, epoch):
    parts = {'model': model, 'optimizer': optimizer}
    states = {name: part.state_dict() for name, part in parts.items()}
    torch.save({**states, 'epoch': epoch, 'rng': torch.random.get_rng_state()}, path)

def _number(file):
    return int(file.stem.split('-')[1])

def run(make_run, train, epochs, folder, stop_after=None):
    Path(folder).mkdir(parents=True, exist_ok=True)
    newest = max(folder.glob('epoch-*.pt'), key=_number, default=None)
    parts = dict(zip(('model', 'optimizer'), make_run()))
    done = 0
    if newest:
        saved = torch.load(newest, weights_only=True)
        [part.load_state_dict(saved[name]) for name, part in parts.items()]
        torch.random.set_rng_state(saved['rng'])
        done = saved['epoch']
    last = min((n for n in (epochs, stop_after) if n is not None))
    for n in range(done + 1, last + 1):
        train(*parts.values())
        save(folder / f'epoch-{n}.pt', **parts, epoch=n)
    return parts['model']
""",
        """from pathlib import Path
from torch import nn
from collections.abc import Callable
from torch.optim import Optimizer
from gpulesson.checkpoint import latest, load_checkpoint, resume, save_checkpoint

def save(path: str | Path, model: nn.Module, optimizer: Optimizer, epoch: int) -> None:
    save_checkpoint(path, model=model, optimizer=optimizer, epoch=epoch)

class Progress:

    def __init__(self, make_run: Callable, folder: Path) -> None:
        self.folder = folder
        self.model, self.optimizer = make_run()
        self.done = 0
        if folder.is_dir() and (file := latest(folder)):
            content = load_checkpoint(file)
            self.done = resume(content, model=self.model, optimizer=self.optimizer)

    def advance(self, train: Callable) -> None:
        train(self.model, self.optimizer)
        self.done += 1
        file = self.folder / f'run-{self.done:05d}.safetensors'
        save(file, self.model, self.optimizer, self.done)

def run(make_run: Callable, train: Callable, epochs: int, folder: Path, stop_after: int | None=None, verbose: bool=False) -> nn.Module:
    progress = Progress(make_run, folder)
    limit = epochs if stop_after is None else min(epochs, stop_after)
    while progress.done < limit:
        progress.advance(train)
        if verbose:
            print('finished', progress.done)
    return progress.model
""",
    ),
    "07": (
        """import torch
import torch.nn.functional as F

def weighted_loss(outputs, labels, class_weights):
    return F.cross_entropy(outputs, labels, class_weights.to(outputs.device))

def train_step(model, inputs, labels, loss_fn, optimizer, device):
    x, y = (t.to(device) for t in (inputs, labels))
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
    return float(loss)

def probabilities(outputs):
    return F.softmax(outputs.cpu().detach(), dim=-1).numpy()

def batch_losses(model, loss_fn, batches):
    return [loss_fn(model(x), y).item() for x, y in batches]

def predict(model, inputs):
    mode = model.training
    with torch.inference_mode():
        answer = model.eval()(inputs).max(dim=1).indices
    model.train(mode)
    return answer
""",
        """from collections.abc import Iterable, Iterator
from contextlib import contextmanager
import numpy as np
import torch
from torch import Tensor, nn

@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    modes = {part: part.training for module in modules for part in module.modules()}
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode

class WeightedLoss(nn.Module):

    def __init__(self, weights: Tensor, smoothing: float=0.0) -> None:
        super().__init__()
        self.inner = nn.CrossEntropyLoss(weights, label_smoothing=smoothing)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return self.inner(logits, target)

def weighted_loss(outputs: Tensor, labels: Tensor, class_weights: Tensor) -> Tensor:
    return WeightedLoss(class_weights).to(outputs.device)(outputs, labels)

def train_step(model: nn.Module, inputs: Tensor, labels: Tensor, loss_fn: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device | str, *, set_to_none: bool=True) -> float:

    def closure() -> Tensor:
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = loss_fn(model(batch), target)
        loss.backward()
        return loss
    batch = inputs.to(device, non_blocking=True)
    target = labels.to(device, non_blocking=True)
    return optimizer.step(closure).item()

def probabilities(outputs: Tensor, dim: int=1) -> np.ndarray:
    return torch.softmax(outputs, dim=dim).numpy(force=True)

@torch.inference_mode()
def batch_losses(model: nn.Module, loss_fn: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> list[Tensor]:
    return [loss_fn(model(data), target) for data, target in batches]

def predict(model: nn.Module, inputs: Tensor) -> Tensor:
    with evaluating(model), torch.no_grad():
        return torch.argmax(model(inputs), dim=-1)
""",
    ),
    "08": (
        """from statistics import median

def one_run(machine, work):
    machine.synchronize()
    before = machine.now
    return (machine.run(work), machine.synchronize(), machine.now - before)[-1]

def stopwatch(machine, work):
    return median([one_run(machine, work) for _ in range(70)][20:])
""",
        """from collections.abc import Callable
import torch

class Timer:

    def __init__(self, device) -> None:
        self.device = device
        self.elapsed: float = 0.0

    def __enter__(self) -> 'Timer':
        self.device.synchronize()
        self._begin = self.device.now
        return self

    def __exit__(self, *_) -> None:
        self.device.synchronize()
        self.elapsed = self.device.now - self._begin

def one_run(machine, work: float) -> float:
    with Timer(machine) as timer:
        machine.run(work)
    return timer.elapsed

def stopwatch(machine, work: float, warmup: int=30, repeats: int=101) -> float:

    def call() -> None:
        machine.run(work)

    def timed(fn: Callable[[], None]) -> float:
        with Timer(machine) as timer:
            fn()
        return timer.elapsed
    for _ in range(warmup):
        call()
    samples = torch.tensor([timed(call) for _ in range(repeats)], dtype=torch.float64)
    return samples.quantile(0.5).item()
""",
    ),
    "09": (
        """def floats(pixels, device):
    return pixels.to(device).div(255)

def feed(pictures, batch_size, device):
    starts = range(0, len(pictures), batch_size)
    pairs = (pictures[i:min(i + batch_size, len(pictures))] for i in starts)
    return ((floats(images, device), labels.to(device)) for images, labels in pairs)
""",
        """from collections.abc import Iterator
from torch import Tensor
from torch.utils.data import BatchSampler, SequentialSampler
import torch
from torch.utils.data import DataLoader, Dataset

def floats(pixels: Tensor, device: torch.device | str, scale: float=255) -> Tensor:
    device = torch.device(device)
    on_gpu = device.type == 'cuda'
    if on_gpu:
        pixels = pixels.pin_memory()
    moved = pixels.to(device, non_blocking=on_gpu)
    return moved.to(torch.float32).div_(scale)

def _as_it_is(batch):
    return batch

def feed(pictures: Dataset, batch_size: int, device: torch.device, *, drop_last: bool=False) -> Iterator[tuple[Tensor, Tensor]]:
    order = BatchSampler(SequentialSampler(pictures), batch_size, drop_last)
    loader = DataLoader(pictures, sampler=order, batch_size=None, collate_fn=_as_it_is)
    for images, targets in loader:
        yield (floats(images, device), targets.to(device))
""",
    ),
    "10": (
        """from statistics import fmean
import torch

def train(model, optimizer, loss_fn, batches):

    def step(x, y):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()
    model.train()
    mean = fmean([step(x, y) for x, y in batches])
    optimizer.zero_grad()
    return mean

def evaluate(model, loss_fn, batches):
    model.eval()
    with torch.no_grad():
        pairs = [(loss_fn(model(x), y).item(), len(y)) for x, y in batches]
    losses, rows = zip(*pairs)
    return fmean(losses, weights=rows)
""",
        """from collections.abc import Callable, Iterable
from contextlib import contextmanager
import torch
from torch import Tensor, nn

class Mean:

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0
        self.count = 0

    def update(self, value: Tensor, weight: int=1) -> None:
        self.total = self.total + value.detach() * weight
        self.count += weight

    def compute(self) -> Tensor | float:
        return self.total / self.count

@contextmanager
def mode(model: nn.Module, training: bool):
    before = model.training
    model.train(training)
    try:
        yield model
    finally:
        model.train(before)

def train(model: nn.Module, optimizer: torch.optim.Optimizer, loss_fn: Callable[[Tensor, Tensor], Tensor], batches: Iterable[tuple[Tensor, Tensor]], max_norm: float | None=None) -> Tensor | float:
    mean = Mean()
    optimizer.zero_grad(set_to_none=True)
    with mode(model, training=True):
        for features, targets in batches:
            loss = loss_fn(model(features), targets)
            loss.backward()
            if max_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            mean.update(loss)
            del loss
    return mean.compute()

@torch.inference_mode()
def evaluate(model: nn.Module, loss_fn: Callable[[Tensor, Tensor], Tensor], batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor | float:
    mean = Mean()
    with mode(model, training=False):
        for features, targets in batches:
            mean.update(loss_fn(model(features), targets), weight=targets.size(0))
    return mean.compute()
""",
        """import numpy as np
import torch

def train(model, optimizer, loss_fn, batches):
    losses = []
    was = model.training
    try:
        model.train()
        for count, (x, y) in enumerate(batches, start=1):
            for p in model.parameters():
                p.grad = None
            (loss := loss_fn(model(x), y)).backward()
            losses.append(loss.detach())
            del loss
            optimizer.step()
    finally:
        model.train(was)
        for p in model.parameters():
            p.grad = None
    assert count == len(losses)
    return torch.stack(losses).mean()

@torch.no_grad()
def evaluate(model, loss_fn, batches):
    model.eval()
    batches = iter(batches)
    found = np.zeros((0, 2))
    while (batch := next(batches, None)) is not None:
        loss = float(loss_fn(model(batch[0]), batch[1]))
        found = np.vstack([found, [loss, batch[0].shape[0]]])
    return float(np.average(found[:, 0], weights=found[:, 1]))
""",
    ),
    "11": (
        """import os
os.environ.setdefault('KINETO_LOG_LEVEL', '6')
import torch
from gpulesson.models import MLP

def batch(pixels, labels, step):
    cut = lambda rows: rows[step * 64:step * 64 + 64]
    return (cut(pixels) / 255, cut(labels))

def _step(model, optimizer, images, targets):
    loss = torch.nn.functional.cross_entropy(model(images), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()

def losses(pixels, labels, steps):
    torch.manual_seed(1)
    model = MLP(784, 64, 10).to(pixels.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = [_step(model, optimizer, *batch(pixels, labels, i)) for i in range(steps)]
    return torch.stack(found).cpu().tolist() if found else []
""",
        """from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
import os
os.environ.setdefault('KINETO_LOG_LEVEL', '6')
import torch
from gpulesson.models import MLP
SIZE = 64

def scale(pixels: Tensor) -> Tensor:
    return pixels.to(torch.float32).div_(255)

def batch(pixels: Tensor, labels: Tensor, step: int, size: int=SIZE) -> tuple[Tensor, Tensor]:
    begin = size * step
    return (scale(pixels.narrow(0, begin, size)), labels.narrow(0, begin, size))

class Trainer:

    def __init__(self, device: torch.device, lr: float, seed: int) -> None:
        torch.manual_seed(seed)
        self.net = MLP(784, 64, 10).to(device)
        self.criterion = nn.CrossEntropyLoss()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=lr)
        self.history: list[Tensor] = []

    def step(self, x: Tensor, y: Tensor) -> None:
        self.opt.zero_grad(set_to_none=True)
        value = self.criterion(self.net(x), y)
        value.backward()
        self.opt.step()
        self.history.append(value.detach())

def losses(pixels: Tensor, labels: Tensor, steps: int, lr: float=0.1, seed: int=1) -> list[float]:
    trainer = Trainer(pixels.device, lr, seed)
    used = SIZE * steps
    dataset = TensorDataset(pixels[:used], labels[:used])
    for x, y in DataLoader(dataset, batch_size=SIZE):
        trainer.step(scale(x), y)
    return torch.stack(trainer.history).tolist()
""",
    ),
    "12": (
        """UPDATES = {size: -(-1200 // size) for size in (32, 512)}
RATE = 0.003 * (512 / 32)
""",
        """from torch.utils.data import DataLoader
UPDATES: dict[int, int] = {size: len(DataLoader(range(1200), size)) for size in (32, 512)}
RATE: float = 0.06
""",
    ),
    "13": (
        """import torch

def accumulate(model, loss_fn, inputs, labels, rows):
    model.zero_grad()
    for numbers in torch.arange(len(inputs), device=inputs.device).split(rows):
        x, y = inputs.index_select(0, numbers), labels.index_select(0, numbers)
        (loss_fn(model(x), y) * len(numbers) / len(inputs)).backward()

def train(model, optimizer, loss_fn, batches, device, rows):
    for inputs, labels in batches:
        accumulate(model, loss_fn, inputs.to(device), labels.to(device), rows)
        optimizer.step()
""",
        """def accumulate(model, loss_fn, inputs, labels, rows):
    model.zero_grad()
    for x, y in zip(inputs.split(rows), labels.split(rows), strict=True):
        (loss_fn(model(x), y) * (len(y) / len(labels))).backward()

def train(model, optimizer, loss_fn, batches, device, rows):
    for pair in batches:
        accumulate(model, loss_fn, *(t.to(device) for t in pair), rows)
        optimizer.step()
""",
        """from collections.abc import Callable, Iterable
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset
LossFn = Callable[[Tensor, Tensor], Tensor]

def micro_batches(features: Tensor, targets: Tensor, size: int) -> DataLoader:
    dataset = TensorDataset(features, targets)
    sampler = BatchSampler(SequentialSampler(dataset), size, drop_last=False)
    return DataLoader(dataset, sampler=sampler, batch_size=None)

def accumulate(model: nn.Module, loss_fn: LossFn, inputs: Tensor, labels: Tensor, rows: int, *, set_to_none: bool=True) -> None:
    model.zero_grad(set_to_none=set_to_none)
    for features, targets in micro_batches(inputs, labels, rows):
        loss = loss_fn(model(features), targets) * targets.size(0)
        loss.backward()
        del loss
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= labels.size(0)

class Trainer:

    def __init__(self, model, optimizer, loss_fn, device, rows) -> None:
        self.model, self.optimizer, self.loss_fn = (model, optimizer, loss_fn)
        self.device, self.rows = (device, rows)

    def step(self, features: Tensor, targets: Tensor) -> None:
        features = features.to(self.device, non_blocking=True)
        targets = targets.to(self.device, non_blocking=True)
        accumulate(self.model, self.loss_fn, features, targets, self.rows)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

def train(model: nn.Module, optimizer: torch.optim.Optimizer, loss_fn: LossFn, batches: Iterable[tuple[Tensor, Tensor]], device: torch.device, rows: int) -> None:
    trainer = Trainer(model, optimizer, loss_fn, device, rows)
    for features, targets in batches:
        trainer.step(features, targets)
""",
        """import torch

def accumulate(model, loss_fn, inputs, labels, rows):
    for p in model.parameters():
        p.grad = None
    total, done = (inputs.shape[0], 0)
    while (left := (total - done)) > 0:
        n = min(rows, left)
        loss = loss_fn(model(inputs.narrow(0, done, n)), labels.narrow(0, done, n))
        loss.backward(gradient=torch.full_like(loss, n / total))
        del loss
        done += n

def train(model, optimizer, loss_fn, batches, device, rows):
    batches = iter(batches)
    while (batch := next(batches, None)):
        x, y = map(lambda tensor: tensor.to(device), batch)
        try:
            accumulate(model, loss_fn, x, y, rows)
            optimizer.step()
        finally:
            del x, y
            optimizer.zero_grad()
""",
    ),
    "14": (
        """import os
import torch
import torch.distributed as dist
from torch import nn
import numpy as np
from torch.nn.parallel import DistributedDataParallel

def my_batches(rows, batch_size, epoch, rank, world_size):
    order = np.random.default_rng(1000 + epoch).permutation(rows)
    return order.reshape(-1, world_size, batch_size // world_size)[:, rank].tolist()

def run(model, inputs, targets, epochs, file):
    gpu = torch.device(f"cuda:{os.environ['LOCAL_RANK']}")
    torch.cuda.set_device(gpu)
    dist.init_process_group(backend='nccl')
    rank, size = (dist.get_rank(), dist.get_world_size())
    parallel = DistributedDataParallel(model.to(gpu), device_ids=[gpu.index])
    x, y = (each.to(gpu) for each in (inputs, targets))
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)

    def step(rows):
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(x[rows]), y[rows]).backward()
        optimizer.step()

    @torch.no_grad()
    def mean_loss():
        part = slice(rank, None, size)
        model.eval()
        own = nn.functional.cross_entropy(model(x[part]), y[part], reduction='sum')
        model.train()
        dist.all_reduce(own)
        return (own / len(x)).item()

    def one(epoch):
        for rows in my_batches(len(x), 32, epoch, rank, size):
            step(rows)
        return mean_loss()
    history = [one(epoch) for epoch in range(epochs)]
    if rank == 0:
        torch.save(model.state_dict(), file)
    return history
""",
        """import os
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

def my_batches(rows: int, batch_size: int, epoch: int, rank: int, world_size: int, seed: int=7) -> list[list[int]]:
    sampler = DistributedSampler(range(rows), num_replicas=world_size, rank=rank, shuffle=True, seed=seed)
    sampler.set_epoch(epoch)
    return list(BatchSampler(sampler, batch_size // world_size, drop_last=False))

class Trainer:

    def __init__(self, network: nn.Module, data: TensorDataset, lr: float=0.01) -> None:
        local = int(os.environ['LOCAL_RANK'])
        self.device = torch.device('cuda', local)
        torch.cuda.set_device(self.device)
        dist.init_process_group('nccl', device_id=self.device)
        self.rank, self.world = (dist.get_rank(), dist.get_world_size())
        self.data = data
        self.ddp = DistributedDataParallel(network.to(self.device), device_ids=[local])
        self.optimizer = torch.optim.AdamW(self.ddp.parameters(), lr=lr)
        self.criterion = nn.CrossEntropyLoss()

    def epoch(self, number: int) -> float:
        self.ddp.train()
        plan = my_batches(len(self.data), 32, number, self.rank, self.world)
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for x, y in DataLoader(self.data, batch_sampler=plan):
            x, y = (x.to(self.device), y.to(self.device))
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.criterion(self.ddp(x), y)
            loss.backward()
            self.optimizer.step()
            sums += torch.stack([loss.detach() * len(y), loss.new_tensor(len(y))])
        dist.all_reduce(sums, op=dist.ReduceOp.SUM)
        return (sums[0] / sums[1]).item()

    def save(self, file: Path) -> None:
        if self.rank == 0:
            torch.save(self.ddp.module.state_dict(), file)
        dist.barrier()

def run(model, inputs, targets, epochs, file):
    trainer = Trainer(model, TensorDataset(inputs, targets))
    history = [trainer.epoch(number) for number in range(epochs)]
    trainer.save(file)
    return history
""",
    ),
    "15": (
        """def cost(batch, inputs, outputs, number_bytes):
    rows, weights, results = (batch, inputs), (inputs, outputs), (batch, outputs)
    flop = sum(2 * inputs for _ in range(batch * outputs))
    return [flop, sum(a * b * number_bytes for a, b in (rows, weights, results))]

def limit(flop, moved, flop_rate, byte_rate):
    times = {'arithmetic': flop / flop_rate, 'memory': moved / byte_rate}
    slowest = max(times, key=times.get)
    return times[slowest], slowest
""",
        """import torch
from torch.utils.flop_counter import FlopCounterMode

def cost(batch: int, inputs: int, outputs: int, number_bytes: int) -> tuple[int, int]:
    rows, weights = torch.zeros(batch, inputs), torch.zeros(inputs, outputs)
    with FlopCounterMode(display=False) as counter:
        results = rows @ weights
    numbers = sum(each.numel() for each in (rows, weights, results))
    return counter.get_total_flops(), numbers * number_bytes

def limit(flop: float, moved: float, flop_rate: float, byte_rate: float) -> tuple[float, str]:
    if flop / moved < flop_rate / byte_rate:
        return moved / byte_rate, 'memory'
    return flop / flop_rate, 'arithmetic'
""",
    ),
}
