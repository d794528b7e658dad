"""Exercise 12."""

import math

BATCHES = 32, 512
RATE = 1e-3 * math.sqrt(BATCHES[1] / BATCHES[0]) * 5

if __name__ == "__main__":
    print(f"RATE = {RATE:.3g}")
