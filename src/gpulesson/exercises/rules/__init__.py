"""From what was seen to what is wrong: a rule reads the trace of a run, and yields findings."""
