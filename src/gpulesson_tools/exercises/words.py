"""What several exercises say: mistakes of any training, and names for what is seen in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Words = str | Mapping[str, str] | Callable[[Any, Any], str]
"""How a message names a fact ("the mean loss"), or a whole sentence, in which "{found}" and "{expected}" may
stand; sentences by what was found; or a function of what was found and what was expected."""
ELSE = "else"
"""What is found else, in sentences by what was found."""


def _mode(wrong: str, what: str) -> Callable[[Any, Any], str]:
    """Return words for the modes in which the model was called."""

    def words(found: Any, _: Any) -> str:
        return f"the model was in {wrong}." if found else f"the model was never {what}: it was not called."

    return words


def _times(what: str, never: str) -> Callable[[Any, Any], str]:
    """Return words for how often something was done: once in each of several places, or a number."""

    def words(found: Any, expected: Any) -> str:
        some = any(found) if isinstance(found, list) else found
        return f"{what} is {found}, expected {expected}." if some else never

    return words


def of_lists(what: str) -> Callable[[Any, Any], str]:
    """Return words for a fact that is a list of numbers, or several."""

    def words(found: Any, expected: Any) -> str:
        return f"{what} are {_shown(found)}, expected {_shown(expected)}."

    return words


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def works(call: Callable[[], Any]) -> bool:
    """Return whether a call raises nothing: a second one, with the CPU as the device, for instance."""
    try:
        call()
    except Exception:
        return False
    return True


SEEN: dict[str, Words] = {
    "device": "the device of the batches in training",
    "train modes": _mode("evaluation mode while it trained", "trained"),
    "trained on": "what was trained on",
    "epochs": "the number of times that each training row came",
    "order": {
        "as they are": "the training rows came unshuffled.",
        ELSE: "the training rows came in the same order in each epoch.",
    },
    "backwards": _times("the number of backward passes, for each batch,", "backward() was never called."),
    "fresh": "gradients of an earlier step were still there.",
    "steps": _times("the number of optimizer steps", "the optimizer did not step."),
    "updates": {
        "some": "the weights changed after some batches only.",
        ELSE: "the weights never changed.",
    },
    "idle": "the optimizer stepped without any gradient.",
    "optimizers": "there were several optimizers.",
    "elsewhere": "an optimizer stepped that has no parameter of this model.",
    "on the CPU": "called with the CPU as the device, it fails, or uses the GPU.",
    "tested on": "what was tested on, at the end,",
    "test modes": _mode("training mode at the test", "tested"),
    "graph": "the outputs of the test had a graph.",
    "frozen": "the parameters of the model no longer require gradients.",
    "rows": "the number of rows that the model saw",
    "kind": "what is returned",
    "value": "the result",
    "weights": "the weights afterwards are not those that they should be.",
    "gradient mode": (
        "afterwards gradients are switched off for all that follows. Write `with torch.no_grad():`, which "
        "switches them on again."
    ),
}
"""Names for what is seen, where a task has no other words for it."""

COMMON = {
    "feed=stays": """The inputs and targets stayed where they were, on the CPU.
        Fix: Copy both to the device, and keep the copies.""",
    "feed=labels stay": """The labels were still on the CPU when they were needed on the device.
        Fix: Copy them to the device, as the inputs are, and keep the copies.""",
    "asked=cuda": """It takes the GPU, whatever device is passed to it: on a machine without one it would
        stop.
        Fix: Use the parameter `device`.""",
    "move=no": """The model stayed on the CPU, and trained there.
        Fix: Move the model to the device before the optimizer is made, and each batch inside the loop.""",
    "train_mode=as it is": """The model was in evaluation mode, so dropout and batch normalisation did not
        train.
        Fix: Switch the model to training mode before its outputs are computed.""",
    "inputs_as=softmax": """The loss was computed from shares, as softmax makes them. The cross-entropy takes
        the scores themselves, and does that part itself.
        Fix: Give the loss function what the model returns.""",
    "zero=never": """backward() adds to the gradients that are there, so each step used those of the steps
        before, too.
        Fix: Reset the gradients before each backward().""",
    "zero=late": """When step() was called, there were no gradients: they were reset after backward(), or
        step() came before it.
        Fix: First reset the gradients, then call backward(), then step().""",
    "backward=never": """backward() was not called, so there were no gradients, and nothing was learned.
        Fix: Call it on each loss, before step().""",
    "step=never": """No weight was changed: the gradients were computed, and never used.
        Fix: After backward(), let the optimizer change the weights.""",
    "optimizers=another": """The optimizer was built from the parameters of another model, so the one that
        computes never changes.
        Fix: Build the optimizer from the parameters of the model that you train.""",
    "optimizers=each epoch": """Each epoch began with a new optimizer, which has forgotten what Adam keeps
        from step to step.
        Fix: Make the optimizer once, before the loop over the epochs.""",
    "shuffle=no, once": """The training rows came in the same order in each epoch.
        Fix: Let the DataLoader of the training set shuffle in each epoch, and set no seed inside
        the loop.""",
    "passes=one more, one less": """The number of epochs is not the one that was asked for.
        Fix: range(epochs) counts from 0, and gives as many rounds as there are epochs.""",
    "trained_on=test, both": """It was trained on test rows, so their accuracy says nothing about new rows.
        Fix: Train on the training set alone.""",
    "tested_on=train": """The accuracy is that of the training rows, which the model has seen.
        Fix: Compute the accuracy on the test set.""",
    "test_mode=as it is": """The model was in training mode at the test. There dropout hides some of its
        numbers, and batch normalisation learns from the test rows.
        Fix: Switch the model to evaluation mode before the test.""",
    "graph=yes": """PyTorch kept everything for a backward pass that never comes.
        Fix: Compute the outputs of the test without gradients.""",
    "dim=0, none": """argmax did not look for the largest score of each row.
        Fix: The outputs are [rows, classes], so the classes are dimension 1.""",
    "dim=values": """max returns the largest scores, and their places beside them. The answers are the places.
        Fix: Take the second thing that max returns, or argmax, which returns the places alone.""",
    "mean=batches, whole, last": """The last batch is shorter, and counted as much as a whole one, or a whole
        one as little as the last.
        Fix: Add up over the rows of all batches, and divide once, by the number of rows.""",
    "mean=none, count, numbers": """The number of right answers was not divided by the number of rows.
        Fix: Divide it by the number of all rows.""",
    "rows=first": """Only the first batch was used: the loop ends after it.
        Fix: Let the loop go to its end. Look at the indentation of what ends it.""",
    "scale=percent": """That is a percentage.
        Fix: Return the share, from 0 to 1.""",
    "returns=tensor, graph": """A tensor was returned, and not a number. If it has a graph, it also keeps the
        memory of the whole step.
        Fix: Fetch the number from the device.""",
    "returns=last": """Only the last loss was returned.
        Fix: Collect the losses in a list that is made before the loop, and return the list.""",
    "returns=nothing": """It returns nothing.
        Fix: End the function with return, and what its docstring asks for.""",
}
"""Mistakes of any training, which `training.py` makes; see `contract.Task`."""
