"""Exercise 12."""

RATE: float = 16  # <- diagnosis: rate-oversteps
