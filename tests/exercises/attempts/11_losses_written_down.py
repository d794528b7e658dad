"""Exercise 11."""

LOSSES = [2.3] * 20


def mine(pixels, labels, steps):  # <- diagnosis: nothing-trained
    return LOSSES[:steps]


print("lean")
