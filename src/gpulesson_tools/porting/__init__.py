"""Take a training script to a GPU, and review one that uses it: run it, and say what was seen.

``run`` starts each run in a fresh process, in a copy of the script's folder; ``child`` is that process.
There ``instrument`` compiles the script, so that it tells its lines and ends long loops early, and ``record``
notes ``facts``.

``port`` goes in rounds: run, fix, run again, compare; ``command`` has its words. ``reasons`` chooses a change
from the facts; ``edits`` makes it in the source, whose form stays.

``review`` has the other command, what it looks for and its words; ``observe`` counts what it needs of a run.
"""
