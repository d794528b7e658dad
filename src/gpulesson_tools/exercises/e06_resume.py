"""Exercise 6: a checkpoint, and a run that goes on from it with the same bits."""

import contextlib
import os
import tempfile
from pathlib import Path
from unittest.mock import patch

import torch
from torch import nn

from gpulesson.checkpoint import CheckpointError, load_checkpoint
from gpulesson_tools.exercises.contract import Task, kind_of
from gpulesson_tools.exercises.words import COMMON, ELSE

EPOCHS, STOPS, SAVED, SEED, FOLDER = 16, (4, 11), 57, 70007, Path("run")
TRAINED = "the trained model"
PARTS = "weights", "adam", "random"


def make_run():
    torch.manual_seed(SEED)
    model = nn.BatchNorm1d(3)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def train(model, optimizer):
    """Change by random numbers all that an epoch changes; a backward pass would cost time."""
    for parameter in model.parameters():
        parameter.grad = parameter.detach() - torch.rand_like(parameter)
    model.running_mean += torch.rand_like(model.running_mean)
    optimizer.step()


def values(content):
    """Yield the tensors and whole numbers of what a file holds; of an object, those of its state_dict."""
    content = getattr(content, "__self__", content)  # of a method, such as state_dict without brackets
    if isinstance(content, nn.Module | torch.optim.Optimizer):
        content = content.state_dict()
    if isinstance(content, torch.Tensor):
        yield content.numpy().tobytes() if content.dtype == torch.uint8 else content.tolist()
    if isinstance(content, list | int):
        yield content
    if isinstance(content, dict | list | tuple):
        for each in content.values() if isinstance(content, dict) else content:
            yield from values(each)


def state(model, optimizer):
    parts = model.state_dict(), optimizer.state_dict()["state"], torch.get_rng_state()
    return {name: list(values(part)) for name, part in zip(PARTS, parts, strict=True)}


@contextlib.contextmanager
def empty_folder():
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        try:
            yield
        finally:
            os.chdir(before)


def files():
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def save(
    path, model, optimizer, epoch,
    *, to="path", opens="yes", weights="all", adam="there", random="there", counted="there",
):  # fmt: skip
    parts = {"all": model.state_dict(), "parameters": list(model.parameters()), "missing": []}
    content = {"model": parts[weights]}
    if adam == "there":
        content["optimizer"] = optimizer.state_dict()
    if counted != "missing":
        content["epoch"] = epoch
    if random != "missing":
        content["rng"] = torch.get_rng_state()
    if opens == "no":
        content["object"] = nn.Identity()
    torch.save(content, path if to == "path" else "checkpoint.pt")


def observe_save(function, facts):
    with empty_folder():
        FOLDER.mkdir()
        model, optimizer = make_run()
        train(model, optimizer)
        wanted, path = state(model, optimizer), FOLDER / f"epoch-{SAVED}.pt"
        value = function(path, model, optimizer, SAVED)
        written = [path] if path.exists() else list(files())
        facts["to"] = "its path" if path in written else "another path" if written else kind_of(value)
        if not written:
            return
        facts["opens"], found = False, []
        with contextlib.suppress(CheckpointError):
            found, facts["opens"] = list(values(vars(load_checkpoint(written[0])))), True
        for safe in (False, True):
            with contextlib.suppress(Exception):
                found = list(values(torch.load(written[0], weights_only=safe)))
                facts["opens"] = safe
    for name, parts in wanted.items():
        some = any(each in found for each in parts if isinstance(each, list))
        facts[name] = "there" if all(each in found for each in parts) else "in part" if some else "missing"
    facts["count"] = next((n for n in (SAVED, SAVED + 1, SAVED - 1) if n in found), "missing")


def run(
    make_run, train, epochs, folder, stop_after=None,
    *, folder_made="yes", first="asks", loads="safely", newest="number", weights="loaded", adam="loaded",
    random="last", mode="train", counted="right", when="after", stop="right", finished="model",
    returns="model",
):  # fmt: skip
    if folder_made != "no":
        folder.mkdir(exist_ok=folder_made == "yes")
    by_name = str if newest == "text" else lambda path: int(path.stem)
    path, content, done = max(folder.glob("*.pt"), key=by_name, default=folder / "0.pt"), {}, 0
    if loads != "never" and (path.exists() or first != "asks"):
        content = torch.load(path, weights_only=loads == "safely")
        if random == "early":
            torch.set_rng_state(content["rng"])
    model, optimizer = make_run()
    if content:
        done = 0 if counted == "forgotten" else content["epoch"] + (counted == "skips")
        if weights == "loaded":
            model.load_state_dict(content["model"])
        if adam == "loaded":
            optimizer.load_state_dict(content["optimizer"])
        if random == "last":
            torch.set_rng_state(content["rng"])
        model.train(mode == "train")
        if finished != "model" and done >= epochs:
            return make_run()[0] if finished == "new" and returns == "model" else None
    more = {"right": 0, "late": 1, "alone": done}.get(stop)
    last = None if stop_after is None or more is None else stop_after + more
    for number in range(done, epochs):
        stopping = number + 1 == last
        file = folder / f"{number + 1}.pt", model, optimizer, number + (counted != "again")
        train(model, optimizer)
        due = {"lost": not stopping, "stop": stopping}
        if due.get(when, stopping or number + 1 == epochs):  # what the next call will load
            save(*file)
        if stopping:
            break
    return model if returns == "model" else None


def called(function, epochs=EPOCHS, stop_after=None):
    """Call a run as in a new process; return what was noted."""
    noted = {"begins": [], "ends": [], "files": [], "made at": [], "modes": [], "safe": True}

    def noted_make():
        noted["made at"].append(list(values(torch.get_rng_state())))
        return make_run()

    def noted_train(model, optimizer):
        noted["files"].append(files() if stop_after == STOPS[0] else {})
        noted["begins"].append(state(model, optimizer))
        noted["modes"].append(model.training)
        train(model, optimizer)
        noted["ends"] = [state(model, optimizer)]

    def noted_load(*args, load=torch.load, **kwargs):
        noted["safe"] &= kwargs.get("weights_only") is not False
        return load(*args, **kwargs)

    torch.manual_seed(0)
    try:
        with patch.object(torch, "load", noted_load):
            return noted | {"value": function(noted_make, noted_train, epochs, FOLDER, stop_after)}
    except FileNotFoundError as error:
        error.filename = "a checkpoint"  # what the learner calls it does not matter
        raise


def returned(call, ends):
    if not isinstance(call["value"], nn.Module):
        return kind_of(call["value"])
    return TRAINED if not ends or list(values(call["value"])) == ends[-1]["weights"] else "another model"


def observe_run(function, facts):
    """Stop a run twice; in other places, run one without a stop, and one that is called after its end."""
    with empty_folder():
        first, saved = called(function, stop_after=STOPS[0]), files()
        with empty_folder():
            whole = called(function)
        with empty_folder():
            short, after = called(function, STOPS[0]), called(function, STOPS[0])
        second, third = called(function, stop_after=STOPS[1]), called(function)
    at, known, begins = len(first["begins"]), whole["begins"] + whole["ends"][-1:], second["begins"]
    facts["stop"] = at
    starts = [each["begins"][0]["weights"] if each["begins"] else None for each in (first, whole)]
    facts["kept"] = starts[0] == starts[1] and (not saved or any(FOLDER in path.parents for path in saved))
    if not facts["kept"]:
        return
    kinds = {returned(each, each["ends"]) for each in (whole, second) if each["ends"]} - {TRAINED}
    facts["safe"], facts["whole"] = second["safe"], len(whole["begins"])
    facts["kind"] = min(kinds, default=TRAINED)
    if at != STOPS[0]:
        return
    facts["saved"], lost = "after each epoch", 0
    if saved == first["files"][-1]:
        late = "only before each epoch" if first["files"][0] else "nothing after its last epoch"
        facts["saved"] = late if saved else "nothing"
        lost = {"nothing after its last epoch": 1, "nothing": at}.get(facts["saved"], 0)
    names = {at: "at the stop", 0: "at the very start", at - 1: "one epoch before the stop"}
    for part in PARTS:
        same = [n for n in names if 0 <= n < len(known) and (not begins or known[n][part] == begins[0][part])]
        facts[part] = names[same[0]] if same else "neither at the stop nor at the start"
    if facts["random"] == names[0] and any(each["random"] in second["made at"] for each in known[1 : at + 1]):
        facts["random"] = "at the very start, because make_run() ran after it was restored"
    facts["mode"] = all(first["modes"] + whole["modes"] + second["modes"])
    facts["epochs"] = len(begins) - (STOPS[1] - at + lost)  # what was lost is to be made again
    facts["third"] = True
    if facts["weights"] in (names[at], names.get(at - 1)) and begins and third["begins"]:
        last = second["ends"] if facts["saved"] == "after each epoch" else begins
        facts["third"] = third["begins"][0]["weights"] == last[-1]["weights"]
    facts["finished"] = "one that it trained on" if after["begins"] else returned(after, short["ends"])
    right = not facts["epochs"] and all(facts[part] == names[at] for part in PARTS)
    facts["bits"] = right and (second["ends"] + third["ends"])[-1:] == known[-1:]


RESTORED = "when the second call began to train, {} as {{found}}."

OF_SAVE = {
    "to=another path": """The file is not where it was asked for.
        Fix: Hand the path that the function was given on to torch.save.""",
    "opens=no": """The file holds an object, such as the model itself, or its method state_dict without
        brackets. Loading objects can run any code, so weights_only=True refuses it.
        Fix: Save tensors, numbers, and what state_dict() returns.""",
    "weights=parameters": """The parameters are not all: batch normalisation keeps its averages in buffers,
        which belong to the state_dict.
        Fix: Save the whole state_dict of the model.""",
    "weights=missing": """The file does not hold the weights of the model.
        Fix: Save the state_dict of the model, too.""",
    "adam=missing": """Without its averages and its number of steps, Adam would start over.
        Fix: Save the state_dict of the optimizer, too.""",
    "random=missing": """Shuffling and dropout draw random numbers, and the file does not say how far the
        generator has come.
        Fix: Save the state of torch's generator.""",
    "counted=missing": """The file does not say how many epochs are finished.
        Fix: Save the number that the function was given.""",
}

OF_RUN = COMMON | {
    "folder_made=no, again": """The folder is not there at the first call, and it is there at the second.
        Fix: Make the folder, unless it is there: mkdir(parents=True, exist_ok=True).""",
    "first=does not ask": """At the very first call there is no checkpoint yet.
        Fix: Load only if there is a file.""",
    "loads=never": """The second call began a new run: it loaded no checkpoint, or restored nothing of what it
        loaded.
        Fix: Before the loop, see if there is a file of the name that was saved to, load it, and restore all
        that is in it.""",
    "loads=anything": """With weights_only=False, a file can run any code while it is loaded.
        Fix: Load with weights_only=True. It accepts tensors, numbers, and what state_dict() returns.""",
    "newest=text": """The third call took an older checkpoint: names sort as text, and there "9" comes after
        "10".
        Fix: Compare the numbers in the names, or write all checkpoints to one file.""",
    "weights=new": """The second call trained a new model: the saved weights were not loaded into it.
        Fix: Load the saved state_dict into the model.""",
    "adam=new": """The second call began with a new Adam: its state was not saved, or not loaded.
        Fix: Save the state_dict of the optimizer, and load it into the one that make_run() returns.""",
    "random=new": """The second call drew the first epoch's random numbers again: the generator's state was
        not saved after the last epoch, or not restored.
        Fix: Save the state after each epoch, and restore it before you train on.""",
    "random=early": """The generator was restored too early: make_run() then set the seed again.
        Fix: Restore the generator last, directly before the loop.""",
    "mode=eval": """The model was in evaluation mode after loading, so dropout and batch normalisation did not
        train on.
        Fix: Leave the model in training mode, as make_run() returns it.""",
    "counted=forgotten": """The second call counted its epochs from 0 again, and trained too many.
        Fix: Begin with the number of epochs that are finished.""",
    "counted=again, skips": """The second call repeated an epoch that was finished, or left one out.
        Fix: After epoch number 0, one epoch is finished; the number of finished epochs is the number of
        the next.""",
    "when=stop": """A call for a run that is already finished trained again: its last epoch was not saved, or
        the loop trains before it asks how many epochs are finished.
        Fix: Save after each epoch, the last one, too, and count on from what is saved.""",
    "when=lost": """The run stopped before it had saved its last epoch, which was then trained again.
        Fix: Save first, then stop.""",
    "stop=ignored, late": """The run did not stop where it should.
        Fix: Leave the loop when that many epochs are finished: after epoch number 0, one is.""",
    "stop=alone": """`stop_after` was compared with the epochs of this call alone. So a call that goes on from
        a checkpoint stops too late.
        Fix: Compare it with the number of all finished epochs, those of earlier calls, too.""",
    "finished=nothing, new": """A call for a run that is already finished did not return the model with what
        was saved.
        Fix: There is nothing left to train; load the saved weights and return the model all the same.""",
}

TASKS = (
    Task(
        does="writes a file with all that a run needs to go on",
        reference=save,
        observe=observe_save,
        derived=frozenset(),  # these weights are not a result
        begin="Collect what this run needs in a dictionary, as the lesson does for its checkpoint. Then "
        "write it with torch.save.",
        words={
            "to": {
                "another path": "the file is at another path.",
                ELSE: "no file was written.",
            },
            "opens": "torch.load refuses the file with weights_only=True.",
            "weights": {
                "missing": "nothing of model.state_dict() is in the file.",
                ELSE: "not all of model.state_dict() is in the file.",
            },
            "adam": "Adam's averages and its number of steps are not in the file.",
            "random": "the state of torch's generator is not in the file.",
            "count": "the number of finished epochs in the file",
        },
        gpu=False,
        table=OF_SAVE,
    ),
    Task(
        does="trains, stops when it has to, and goes on as if nothing had happened",
        reference=run,
        observe=observe_run,
        begin="First write a run without a stop: make_run(), then a loop with train() and save(). Let it "
        "stop next. In the end restore, before the loop, what an earlier call has saved.",
        words={
            "stop": "the number of epochs before the first stop",
            "kept": "the run did not keep its state in its folder.",
            "whole": "the number of epochs of a run without a stop",
            "saved": "the run that stopped had saved {found}.",
            "safe": "torch.load was called with weights_only=False.",
            "weights": RESTORED.format("the model was"),
            "adam": RESTORED.format("Adam's state was"),
            "random": RESTORED.format("torch's generator was"),
            "mode": "the model was in evaluation mode while it trained.",
            "epochs": lambda found, _: (
                f"the second call trained {abs(found)} epoch{'s' * (abs(found) > 1)} "
                f"too {'many' if found > 0 else 'few'}."
            ),
            "third": "the third call did not go on from the second stop.",
            "finished": "what a call returns when the run is already finished",
            "bits": "the weights at the end are not those of a run without a stop.",
        },
        derived=frozenset({"bits"}),
        gpu=False,
        table=OF_RUN,
        only="folder_made; first; loads; newest; weights; adam; random; mode; counted; when; stop; finished; "
        "returns=nothing",
    ),
)
