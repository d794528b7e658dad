"""Trains by one program of this folder on a GPU, as a user's script does: ``train_program.py use_timm``."""

import sys
from importlib import import_module

import_module(sys.argv[1]).train("cuda")
