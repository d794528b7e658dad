"""Exercise 12."""

RATE = [1e-2, 2e-2, 4e-2]  # <- diagnosis: rate-no-number
