"""Run every cell of a notebook with this interpreter, and save it: `python run_notebook.py NOTEBOOK`."""

import sys

import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
# no limits of its own: a busy machine is slow, and a test has one
NotebookClient(notebook, kernel_name="python3", timeout=None, startup_timeout=1800).execute()
nbformat.write(notebook, sys.argv[1])
