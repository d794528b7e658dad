"""Save, load and resume a training run, so that nothing is lost and nothing damaged is used.

A checkpoint is a safetensors file: any program for such files reads its tensors. All else (numbers, strings,
names) is JSON in one more tensor, ``checkpoint.json``. It contains no pickle, and nothing that could run.
Its header says where the run was and when, and has a SHA-256 of all that is in the file: metadata, and names,
dtypes, shapes and bytes of the tensors. It detects accidents; it is not a signature.

`saving.collect` puts the content together, and `Checkpoint` describes it: state dicts, random states,
``extra``, and ``position``. In ``position``, `AutoSave` keeps the number of steps, the loader's length and
batch size, its generators, the random states at the start of the epoch, and the history and losses of `fit`.

To use the weights elsewhere, without this package::

    saved = safetensors.torch.load_file("epoch-003.safetensors")
    weights = {name.removeprefix("model."): saved[name] for name in saved if name.startswith("model.")}
    model.load_state_dict(weights)

(Tied weights are stored once, under the first of their names: for a model with tied weights, add
``strict=False``.) ``safetensors.torch.save_model`` and ``load_model`` write and read the weights alone.

A cluster ends a program at its time limit: first by a signal, a minute later by force. `AutoSave` writes
checkpoints as the run goes, and the same command, started again, resumes from the one that got furthest, with
the same bits as a run that was never stopped (where the same run twice gives the same bits). Within an epoch,
it restores the random states of the epoch's start, loads the finished batches again and drops them, and
restores the random states of the moment of saving.
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
