"""Exercise 12."""

import numpy as np

rates = np.geomspace(1e-3, 1e-1, 5)
RATE = rates[3]
