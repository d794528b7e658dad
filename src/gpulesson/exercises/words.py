"""What several exercises say: mistakes of any training, and names for what is seen in them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpulesson.exercises import contract


def _mode(found: list[bool], wrong: str, what: str) -> str:
    return f"the model was in {wrong}." if found else f"the model was never {what}: it was not called."


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


SEEN: dict[str, str | Callable[[Any, Any], str]] = {
    "device": "the device of the batches in training",
    "train modes": lambda found, _: _mode(found, "evaluation mode while it trained", "trained"),
    "trained on": "what was trained on",
    "epochs": "the number of times that each training row came",
    "order": lambda found, _: (
        "the training rows came "
        f"{'unshuffled' if found == 'as they are' else 'in the same order in each epoch'}."
    ),
    "backwards": "the number of backward passes, for each batch,",
    "fresh": "gradients of an earlier step were still there.",
    "steps": "the number of optimizer steps",
    "updates": lambda found, _: (
        f"the weights {'changed after some batches only' if found == 'some' else 'never changed'}."
    ),
    "idle": "the optimizer stepped without any gradient.",
    "optimizers": "there were several optimizers.",
    "elsewhere": "an optimizer stepped that has no parameter of this model.",
    "on the CPU": "called with the CPU as the device, it fails, or uses the GPU.",
    "tested on": "what was tested on, at the end,",
    "test modes": lambda found, _: _mode(found, "training mode at the test", "tested"),
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


COMMON = contract.mistakes("""
feed=stays
The inputs and targets stayed where they were, on the CPU.
Fix: Copy both to the device, and keep the copies.
    inputs, targets = inputs.to(device), targets.to(device)

asked=cuda
It takes the GPU, whatever device is passed to it: on a machine without one it would stop.
Fix: Use the parameter `device`.
    .to(device)

inputs_as=softmax
The loss was computed from shares, as softmax makes them. The cross-entropy takes the scores themselves, and
does that part itself.
Fix: Give the loss function what the model returns.
    loss = loss_fn(model(inputs), targets)

move=no
The model stayed on the CPU, and trained there.
Fix: Move the model to the device before the optimizer is made, and each batch inside the loop.
    model.to(device)

train_mode=as it is
The model was in evaluation mode, so dropout and batch normalisation did not train.
Fix: Switch the model to training mode before its outputs are computed.
    model.train()

test_mode=as it is
The model was in training mode at the test: dropout hid some of its numbers, and batch normalisation learned
from the test rows.
Fix: Switch the model to evaluation mode before the test.
    model.eval()

graph=yes
PyTorch kept everything for a backward pass that never comes.
Fix: Compute the outputs of the test without gradients.
    with torch.no_grad():
        outputs = model(inputs)

graph=frozen
The parameters of the model no longer require gradients: it cannot be trained any more.
Fix: Compute the outputs of the test without gradients, and leave the model as it is.

zero=never
backward() adds to the gradients that are there, so each step used those of the steps before, too.
Fix: Reset the gradients before each backward().
    optimizer.zero_grad()
    loss.backward()

zero=late
When step() was called, there were no gradients: they were reset after backward(), or step() came before it.
Fix: First reset the gradients, then call backward(), then step().
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

step=never
No weight was changed: the gradients were computed, and never used.
Fix: After backward(), let the optimizer change the weights.
    optimizer.step()

optimizers=another
The optimizer was built from the parameters of another model, so the one that computes never changes.
Fix: Build the optimizer from the parameters of the model that you train.
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

optimizers=each epoch
Each epoch began with a new optimizer, which has forgotten what Adam keeps from step to step.
Fix: Make the optimizer once, before the loop over the epochs.
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(epochs):

shuffle=no
The training rows came in the same order in each epoch.
Fix: Let the DataLoader of the training set shuffle.
    DataLoader(train_set, batch_size=32, shuffle=True)

shuffle=once
The training rows were shuffled, but came in the same order in each epoch.
Fix: Let the DataLoader of the training set shuffle, anew in each epoch, and set no seed inside the loop.

passes=one more
It trained for one epoch too many.
Fix: range(epochs) counts from 0, and gives as many rounds as there are epochs.
    for epoch in range(epochs):

passes=one less
It trained for one epoch too few.
Fix: range(epochs) counts from 0, and gives as many rounds as there are epochs.

trained_on=test
It was trained on the test rows, so their accuracy says nothing about new rows.
Fix: Train on the training set alone.
    DataLoader(train_set, batch_size=32, shuffle=True)

trained_on=both
It was trained on the test rows, too, so their accuracy says nothing about new rows.
Fix: Train on the training set alone.

tested_on=train
The accuracy is that of the training rows, which the model has seen.
Fix: Compute the accuracy on the test set.
    DataLoader(test_set, batch_size=32)

dim=0
argmax looked along the rows of the batch, and not along the classes.
Fix: The outputs are [rows, classes], so the classes are dimension 1.
    outputs.argmax(dim=1)

dim=none
argmax looked for one place in the whole table of outputs, and not for one in each row.
Fix: The outputs are [rows, classes], so the classes are dimension 1.

dim=values
max returns the largest scores, and their places beside them. The answers are the places.
Fix: Take the second thing that max returns, or argmax, which returns the places alone.

mean=whole
Each batch counted as a whole one, but the last one is shorter.
Fix: Count the rows of each batch, and divide by their sum.
    rows += len(targets)

mean=last
Each batch counted like the last one, but that is shorter.
Fix: Count the rows of each batch, and divide by their sum.

mean=numbers
The number of right answers was divided by the number of all outputs, several for each row.
Fix: Divide it by the number of rows.
    return right / rows

mean=batches
The last batch is shorter, and counted as much as a whole one.
Fix: Add up over the rows of all batches, and divide once, by the number of rows.
    right += (outputs.argmax(dim=1) == targets).sum().item()

mean=count
The number of right answers was divided by the number of batches.
Fix: Divide it by the number of rows.
    return right / rows

rows=first
Only the first batch counted: the loop ends after it.
Fix: Let the loop go to its end. Look at the indentation of what ends it.
    for inputs, targets in batches:

mean=none
That is the number of right answers, not their share.
Fix: Divide it by the number of rows.
    return right / rows

scale=percent
That is a percentage.
Fix: Return the share, from 0 to 1.

returns=sum
The loss was multiplied by the number of rows. It is asked for as it is: the mean of the batch.
Fix: Return the number of the loss.
    return loss.item()

returns=graph
The loss was returned as a tensor with its graph. If you keep it, you keep the memory of the whole step.
Fix: Return the number alone.

returns=tensor
The result was returned as a tensor, and not as a number.
Fix: Fetch the number from the device.
    return result.item()

returns=nothing
It returns nothing.
Fix: End the function with return, and what its docstring asks for.
    return …
""")

mistakes = partial(contract.mistakes, common=COMMON)
"""Reads mistakes from a text, in which those of any training need no words."""
