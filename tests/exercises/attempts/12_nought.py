"""Exercise 12."""

RATE = 0.0  # <- diagnosis: rate-no-number
