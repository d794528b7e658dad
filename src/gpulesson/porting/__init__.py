"""Take a training script to a GPU: run it on the practice GPU, fix what its errors say, and prove it.

``command`` has the words of ``python -m gpulesson port``; ``port`` the rounds: run, fix, run again, compare.
``run`` starts each run in a process of its own, in a copy of the script's folder; ``child`` is that process,
``record`` notes ``facts`` there, and ``shorten`` ends long loops early. ``reasons`` chooses a change from the
facts; ``edits`` makes it in the source, whose form stays.
"""
