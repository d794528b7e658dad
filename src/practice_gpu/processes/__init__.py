"""Several processes: how each gets its practice GPU, and what they send one another."""
