"""The output of a GPU for each cell of a lesson: recorded on a machine with a GPU, shown by every build.

`files` has the format of a recording, and the hash of a cell. `run` makes a recording; `pages` shows it
beside the output of the build.
"""
