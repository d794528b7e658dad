"""Take a training script to a GPU, and review one that uses it: run it, and report what was seen.

``run`` starts each run in a fresh process, in a copy of the script's folder; ``child`` is that process. There
``instrument`` compiles the script, so that its lines are noted and long loops end early, and ``tracer``
follows it. ``facts`` are what comes back.

``port`` goes in rounds: run, fix, run again, compare; ``command`` reports it. ``reasons`` chooses a change
from the facts; ``edits`` makes it in the source, whose form stays.

``review`` has the other command, and what it looks for; ``observe`` counts what it needs of a run.
"""
