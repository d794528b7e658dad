"""What a GPU gave for each cell of a lesson: recorded where there is a GPU, shown wherever the site is built.

`files` is the file of a recording, and the hash by which it knows a cell. `run` makes a recording; `pages`
shows it beside the output of the build.
"""
