"""Exercise 6: a training that is stopped and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpulesson.exercises.exercise import COMMON, Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.trace import Site, Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

NO_CHECKPOINT = Diagnosis(
    "no-checkpoint",
    "What is not in a file is lost when the program stops.",
    "Save a dictionary with everything that has a state: torch.save({…}, path).",
)
CHECKPOINT_WITHOUT_OPTIMIZER = Diagnosis(
    "checkpoint-without-optimizer",
    "Adam remembers averages of past gradients. With a fresh one the resumed training goes another way.",
    "Save optimizer.state_dict() as well, and load it into the new optimizer.",
)
OPTIMIZER_NOT_RESTORED = Diagnosis(
    "optimizer-not-restored",
    "The optimizer's state is in the file, but the resumed training began with a fresh optimizer.",
    "Load it: optimizer.load_state_dict(checkpoint[…]).",
)
RANDOM_STATE_NOT_RESTORED = Diagnosis(
    "random-state-not-restored",
    "Dropout and shuffling draw from torch's generator. A resumed training that draws other numbers goes "
    "another way.",
    "Save torch.get_rng_state(), and restore it last, with torch.set_rng_state(…).",
)
EPOCH_NOT_RESTORED = Diagnosis(
    "epoch-not-restored",
    "The training must go on where it stopped: not from the beginning, and not one epoch further.",
    "Save the number of finished epochs, and begin the range there.",
)
LOADS_ANYTHING = Diagnosis(
    "loads-anything",
    "With weights_only=False a file may run any code on your machine.",
    "Keep weights_only=True, and save nothing but tensors and plain values.",
)
NOT_THE_SAME_BITS = Diagnosis(
    "not-the-same-bits",
    "Everything that has a state must be saved and restored: weights, optimizer, epoch, random numbers. "
    "And in between nothing may draw a random number.",
    "Restore the random state last, directly before the training goes on.",
)


def resuming(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what a resumed training lacks: the first thing only, in the order in which one meets them."""
    saves = [save for save in trace.saves if save.has_model]
    if not saves:
        yield source.failure(NO_CHECKPOINT, 0, "No file with the model's weights was saved.")
        return
    if trace.facts.get("unsafe_loads"):
        site = Site(*trace.facts["unsafe_loads"][0])
        yield source.failure(LOADS_ANYTHING, site, "The file was loaded with weights_only=False.")
    runs = [optimizer for optimizer in trace.optimizers if optimizer.steps]
    loaded = Site(*trace.facts["loads"][-1]) if trace.facts.get("loads") else saves[-1].site
    if not any(save.has_optimizer for save in saves):
        what = "The file has the model's weights, and nothing of the optimizer."
        yield source.failure(CHECKPOINT_WITHOUT_OPTIMIZER, saves[-1].site, what)
    elif len(runs) >= 3 and not runs[-1].state_loaded:
        what = f"The {runs[-1].name} of the resumed training began without its state."
        yield source.failure(OPTIMIZER_NOT_RESTORED, loaded, what)
    elif not trace.facts.get("rng_restored") and not trace.facts.get("same"):  # the bits are the proof
        what = "Between loading and training on, the random state was not restored."
        yield source.failure(RANDOM_STATE_NOT_RESTORED, loaded, what)
    elif len(runs) >= 3 and runs[-2].steps + runs[-1].steps != runs[0].steps:
        what = (
            f"Undisturbed it took {runs[0].steps} steps; stopped and resumed, {runs[-2].steps} and "
            f"{runs[-1].steps}."
        )
        yield source.failure(EPOCH_NOT_RESTORED, loaded, what)
    elif not trace.facts.get("same"):
        yield source.failure(NOT_THE_SAME_BITS, loaded, "The two models differ in the end.")


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Note whether the first model and the last have the same bits."""
    import torch

    values = observer.values
    stepped = [module for module, seen in observer.training.models.models if seen.stepped]
    states = [module.state_dict() for module in (stepped[:1] + stepped[-1:])]
    with observer.reader.unnoticed():
        trace.facts["same"] = (
            len(stepped) > 1
            and states[0].keys() == states[1].keys()
            and all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        )
    trace.facts["loads"] = values.loads
    trace.facts["unsafe_loads"] = values.unsafe_loads
    trace.facts["rng_restored"] = values.rng_restored


EXERCISE = Exercise(
    name="06_resume",
    lesson="Save, load, resume",
    title="Resume without a trace",
    difficulty="medium",
    hints=(
        "Which object, besides the model, remembers past steps?",
        "Dropout and shuffling draw random numbers. Where does the sequence stand when the run stops?",
        "Save a dictionary: epoch, model, optimizer, torch.get_rng_state(). Restore the last one last.",
    ),
    rules=(*COMMON, resuming),
    probe=probe,
    starts_empty=True,
)
