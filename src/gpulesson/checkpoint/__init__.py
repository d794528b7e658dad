"""Save, load and resume a training run, so that nothing is lost and nothing damaged is used.

A checkpoint is a safetensors file: any program for such files reads its tensors. All else (numbers, texts,
names) is JSON in one more tensor, ``checkpoint.json``. There is no pickle in it, and nothing that could run.
Its header says where the run was and when, and has a SHA-256 of all that is in the file: texts, and names,
dtypes, shapes and bytes of the tensors. It finds accidents; it is not a signature.

`saving.collect` puts the content together, and `Checkpoint` describes it: state dicts, random states,
``extra``, and ``position``. In the last `AutoSave` keeps the number of steps, facts of the loader by which it
is known again, its generators, the random states of the epoch's begin, and the history and losses of `fit`.

To use the weights elsewhere, without this package::

    saved = safetensors.torch.load_file("epoch-003.safetensors")
    weights = {name.removeprefix("model."): saved[name] for name in saved if name.startswith("model.")}
    model.load_state_dict(weights)

(Tied weights are in it once, by the first of their names: for a model that has some, add ``strict=False``.)
A file with nothing but the weights is written by ``safetensors.torch.save_model`` and read by ``load_model``.

A cluster ends a program at its time limit: first by a signal, a minute later by force. `AutoSave` writes
checkpoints often enough, and the same command, started again, goes on from the one that got furthest, with
the same bits as a run that nothing stopped (where the same run twice gives the same bits). Within an epoch,
it goes on like this: all generators of random numbers are set to what they were when the epoch began, the
batches that are done are loaded once more and dropped, and the generators are set to what they were at the
moment of saving.
"""

from gpulesson.checkpoint.autosave import AutoSave, Stopped
from gpulesson.checkpoint.saving import (
    Checkpoint,
    CheckpointError,
    latest,
    load_checkpoint,
    resume,
    save_checkpoint,
)

__all__ = [
    "AutoSave",
    "Checkpoint",
    "CheckpointError",
    "Stopped",
    "latest",
    "load_checkpoint",
    "resume",
    "save_checkpoint",
]
