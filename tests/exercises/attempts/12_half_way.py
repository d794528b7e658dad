"""Exercise 12."""

RATE = 4e-3  # <- diagnosis: rate-too-small
