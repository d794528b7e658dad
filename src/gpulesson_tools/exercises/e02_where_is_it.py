"""Exercise 2: where eight tensors are, and how a model and a batch get to a device."""

import copy
import operator
from collections.abc import Mapping

import torch
from torch import nn

from gpulesson_tools.exercises.contract import Task, kind_of
from gpulesson_tools.exercises.words import COMMON

CPU, GPU = "cpu", "cuda:0"
PLACES = dict(zip("abcdefgh", (CPU, GPU, GPU, CPU, CPU, CPU, GPU, GPU), strict=True))
TENSORS, MODEL = "Ask a tensor where it is", "Copy a tensor, move a model"
DEFAULT = "What a default device changes"
WHY = {
    "a": ("The line names no device, so the tensor is made on the CPU.", TENSORS),
    "b": ("The line says where the tensor is to be made: device=device.", TENSORS),
    "c": ("c is the name of what to(device) returns: a tensor on the GPU.", MODEL),
    "d": ("to() returns a copy, and here no name keeps it. d itself does not move.", MODEL),
    "e": ("c.cpu() returns a copy on the CPU, and e is the name of that copy.", MODEL),
    "f": ("from_numpy uses the memory of the NumPy array, and that is the CPU's.", DEFAULT),
    "g": ("In this block the GPU is the default device, and arange makes a new tensor.", DEFAULT),
    "h": ("The single number may come from the CPU. The result is where b is.", "Two devices do not mix"),
}


def answers(**wrong):
    return PLACES | wrong


def observe_answers(table, facts):
    facts["kind"] = kind_of(table)
    table = dict.fromkeys(PLACES, "?") | (table if isinstance(table, dict) else {})
    left = [name for name in PLACES if str(table[name]) in ("", "?", "None")]
    facts["left"] = len(left)
    for name, right in PLACES.items():  # "cuda" is the first GPU here, as in the starter
        answer = str(table[name]).replace("cuda:0", "cuda").replace("cuda", GPU)
        facts[name] = right if name in left else answer


def is_no_place(found, _):
    known = found in (CPU, GPU)
    return "" if known else f'"{found}" is not a device that is used here: write "cpu" or "cuda:0".'


def bring(
    model, batch, device,
    *, moved="yes", asked="device", kept="yes", place="new", returns="batch",
):  # fmt: skip
    device = device if asked == "device" else "cuda"
    if moved == "parameters" and returns != "nothing":
        for parameter in model.parameters():
            parameter.data = parameter.data.to(device)
    elif moved == "copy" and returns != "nothing":
        model = copy.deepcopy(model).to(device)
    elif moved == "yes" or returns == "nothing":
        model.to(device)
    copies = {name: t if kept == "no" else t.to(device) for name, t in batch.items()}
    if kept == "one":
        copies["labels"] = batch["labels"]
    if kept == "first":
        del copies["labels"]
    if place == "same":
        batch.update(copies)
    return copies if returns == "batch" else None


def observe_bring(function, facts):
    calls = []
    tensors = {"images": torch.arange(6.0).view(2, 3), "labels": torch.tensor([1, 0])}
    model = nn.Sequential(nn.Linear(3, 900), nn.BatchNorm1d(900))
    for source, target in (("cpu", "cuda:0"), ("cuda:0", "cpu")):
        model.to(source)
        given = {name: t.to(source) for name, t in tensors.items()}
        values, memory = list(given.values()), torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = function(model, given, torch.device(target))
        parts = result if isinstance(result, tuple) else (result,)
        found = next((part for part in parts if isinstance(part, Mapping)), {})
        places = {str(t.device) for t in model.state_dict().values()}
        call = {"model": " and ".join(sorted(places))}
        grown = torch.cuda.max_memory_allocated() - memory
        call["copy"] = source == call["model"] == "cpu" and grown > 9000  # the batch is smaller
        call["kind"] = "a dict" if isinstance(result, Mapping) else kind_of(result)
        call["batch"] = {name: str(getattr(t, "device", "nowhere")) for name, t in found.items()}
        pairs = [(found[name], t) for name, t in tensors.items() if name in found]
        call["types"] = {name: str(getattr(t, "dtype", kind_of(t))) for name, t in found.items()}
        call["values"] = all(
            torch.is_tensor(a) and a.shape == b.shape and bool((a.cpu() == b).all()) for a, b in pairs
        )
        call["kept"] = len(given) == 2 and all(map(operator.is_, given.values(), values))
        calls.append(call)
    facts |= {name: [call[name] for call in calls] for name in calls[0]}


def afterwards(what):
    """Say where something was after the first call that left it elsewhere."""

    def words(found, expected):
        first = next(i for i in (0, 1) if found[i] != expected[i])
        places = found[first] if isinstance(found[first], dict) else {"": found[first]}
        where = " and ".join(f"{name} on {place}".strip() for name, place in places.items()) or "nothing"
        return f"when the device was {(GPU, CPU)[first]}, {what} {where}."

    return words


OF_BRING = COMMON | {
    "moved=no": """The model stayed where it was.
        Fix: Call the model's method to. A model moves itself.""",
    "moved=parameters": """Only the parameters of the model were moved. It has buffers, too: batch
        normalisation keeps its averages in them.
        Fix: Call the model's method to. It moves both.""",
    "moved=copy": """A copy of the model, or of its parameters, was moved, and the caller's model stayed where
        it was.
        Fix: Move the model itself: call its own method to.""",
    "kept=no": """The tensors in the dictionary are those that came in. A tensor does not move: to() returns a
        copy.
        Fix: Put what to() returns into a new dictionary.""",
    "kept=one, first": """Only one of the two tensors was copied to the device. The labels must be there, too.
        Fix: Copy each tensor of the batch, and return after the loop.""",
    "place=same": """The caller's dictionary was changed: it no longer holds the tensors that came in.
        Fix: Make a new dictionary for the copies.""",
}

TASKS = (
    Task(
        value="ANSWERS",
        does="says where each of the eight tensors is",
        reference=answers,
        observe=observe_answers,
        begin="Write where each tensor is.",
        words={
            "kind": "ANSWERS",
            "left": '{found} of the 8 still to be filled in. Write "cpu" or "cuda:0" for each.',
            **dict.fromkeys(PLACES, is_no_place),
        },
        table={
            f"{name}={CPU if PLACES[name] == GPU else GPU}": f"{name}: {why} Fix: Read “{section}”."
            for name, (why, section) in WHY.items()
        },
    ),
    Task(
        does="brings a model and a batch to the device",
        reference=bring,
        observe=observe_bring,
        begin="Bring the model to the device. Then make a new dictionary, with a copy of each tensor.",
        words={
            "model": afterwards("the model ended up"),
            "copy": "memory for a second model was taken on the GPU.",
            "kind": "{found[0]} is returned, expected a dict.",
            "batch": afterwards("the dictionary returned had"),
            "types": "what is returned has another type of number.",
            "values": "what is returned has other values.",
            "kept": "the dictionary that came in holds other tensors than before.",
        },
        table=OF_BRING,
        only="moved; kept; place; asked; returns=nothing",
    ),
)
