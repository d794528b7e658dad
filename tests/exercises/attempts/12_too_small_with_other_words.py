"""Exercise 12."""

RATE = 1e-3 / 16  # <- diagnosis: rate-too-small

print("it pays")
