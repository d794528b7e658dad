"""Run every cell of a notebook with this interpreter, and save it: `run_notebook.py FILE [--practice]`."""

import sys

import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
if sys.argv[2:] == ["--practice"]:  # behind the first cell, which may have to install the package
    begin = "import gpulesson\npractice = gpulesson.practice_gpu(force=True)\npractice.__enter__()"
    notebook.cells.insert(1, nbformat.v4.new_code_cell(begin))
# no limit here: a busy machine is slow, and the test has one
NotebookClient(notebook, kernel_name="python3", timeout=None, startup_timeout=1800).execute()
if sys.argv[2:]:
    del notebook.cells[1]
nbformat.write(notebook, sys.argv[1])
