"""Run every cell of a notebook with this interpreter, and save it: `python run_notebook.py NOTEBOOK`."""

import sys

import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, kernel_name="python3", timeout=600).execute()
nbformat.write(notebook, sys.argv[1])
