"""Exercise 12."""

rate = 3e-2  # <- diagnosis: no-rate (no line)

print("it pays")
