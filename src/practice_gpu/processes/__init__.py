"""Several processes: how each gets to know of its practice GPU, and what they send one another."""
