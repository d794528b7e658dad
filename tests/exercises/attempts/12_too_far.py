"""Exercise 12."""

RATE = 3e-1  # <- diagnosis: rate-oversteps
