"""What several exercises say: mistakes of any training, and names for what a `Watch` sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpulesson.exercises.contract import mistakes


def _mode(found: list[bool], wrong: str, what: str) -> str:
    return f"the model was in {wrong}." if found else f"the model was never {what}: it was not called."


SEEN: dict[str, str | Callable[[Any, Any], str]] = {
    "device": "the device of the batches in training",
    "train modes": lambda found, _: _mode(found, "evaluation mode while it trained", "trained"),
    "trained on": "what was trained on",
    "epochs": "the number of times that each training row came",
    "order": "the order of the training rows",
    "backwards": "the number of backward passes, for each batch,",
    "fresh": lambda *_: "gradients of an earlier step were still there.",
    "steps": "the number of optimizer steps",
    "updates": lambda found, _: (
        f"the weights {'changed after some batches only' if found == 'some' else 'never changed'}."
    ),
    "idle": lambda *_: "the optimizer stepped without any gradient.",
    "optimizers": lambda *_: "there were several optimizers.",
    "tested on": "what was tested on, at the end,",
    "test modes": lambda found, _: _mode(found, "training mode at the test", "tested"),
    "graph": lambda *_: "the outputs of the test had a graph.",
    "rows": "the number of rows that the model saw",
    "kind": "what is returned",
    "value": "the result",
    "weights": lambda *_: "the weights afterwards are not those that they should be.",
}

COMMON = mistakes("""
feed=stays
The inputs and targets stayed where they were, on the CPU.
Fix: Copy both to the device, and keep the copies.
    inputs, targets = inputs.to(device), targets.to(device)

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

zero=never
backward() adds to the gradients that are there, so each step used those of the steps before, too.
Fix: Set the gradients back before each backward().
    optimizer.zero_grad()
    loss.backward()

zero=late
The gradients were set back between backward() and step(), so step() had nothing to work with.
Fix: Set the gradients back before backward(), not after it.
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

step=never
No weight was changed: the gradients were computed, and never used.
Fix: After backward(), let the optimizer change the weights.
    optimizer.step()

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
The training rows were shuffled once, and then came in the same order in each epoch.
Fix: Let the DataLoader of the training set shuffle: it does so anew in each epoch.
    DataLoader(train_set, batch_size=32, shuffle=True)

passes=one more
There was one epoch too many.
Fix: Count the epochs by range.
    for epoch in range(epochs):

passes=one less
There was one epoch too few.
Fix: Count the epochs by range.
    for epoch in range(epochs):

trained_on=test
It was trained on the test rows, so their accuracy says nothing about new rows.
Fix: Train on the training set alone.
    DataLoader(train_set, batch_size=32, shuffle=True)

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
    outputs.argmax(dim=1)

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
    return right / rows

returns=graph
The loss was returned as a tensor with its graph. Who keeps it, keeps the memory of the whole step.
Fix: Return the number alone.
    return loss.item()

returns=tensor
The result was returned as a tensor, and not as a number.
Fix: Fetch the number from the device.
    return loss.item()

returns=nothing
It returns nothing.
Fix: End the function with return, and what its docstring asks for.
    return …
""")
