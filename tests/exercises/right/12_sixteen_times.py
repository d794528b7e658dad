"""Exercise 12."""

large, small = 512, 32
RATE = large / small * 1e-3
