"""Exercise 12."""

RATE = "2e-2"  # <- diagnosis: rate-no-number
