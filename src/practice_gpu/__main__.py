"""Run ``python -m practice_gpu script.py``: the script sees CUDA GPUs."""

import os
import sys

if sys.path[0] == os.getcwd():  # noqa: PTH109  # pathlib comes later
    del sys.path[0]  # `python -m` puts the user's folder first: a random.py there is not Python's

from practice_gpu.command import main

sys.exit(main())
