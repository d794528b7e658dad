"""The simulated devices: their memory, streams, random numbers, the log of copies and waits."""
