"""A few steps of a program on the practice GPU, written down."""
