"""Exercise 12."""

RATE: float = 2e-2
