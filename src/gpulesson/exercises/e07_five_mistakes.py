"""Exercise 7: five mistakes in one script."""

from __future__ import annotations

from gpulesson.exercises.exercise import IF_NOTHING_ELSE, Exercise
from gpulesson.exercises.rules import devices, memory, models

EXERCISE = Exercise(
    name="07_five_mistakes",
    lesson="The common mistakes",
    title="Five mistakes in one script",
    difficulty="hard",
    hints=(
        "Three stop it: look at the loss's weights, at the labels, and at NumPy.",
        "The two silent ones: what is appended to losses, and in which mode the model is judged.",
        "nn.CrossEntropyLoss(…).to(device); targets.to(device); held_out.detach(); model.eval(); "
        "predictions.cpu().numpy().",
    ),
    rules=(devices.trained_on, models.modes_always, memory.losses_kept, memory.item_every_step),
    last=IF_NOTHING_ELSE,
)
