"""The least time that a recorded step takes, on one GPU and on several."""
