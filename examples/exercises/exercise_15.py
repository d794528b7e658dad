"""Exercise 15: From which batch on does a layer compute?

Two functions are empty. Write them one after the other, and check whenever you like:

    python -m gpulesson check exercise_15.py
"""

# What the data sheet of an H200 promises: operations a second in bfloat16, bytes a second
FLOP_RATE, BYTE_RATE = 989.4e12, 4.8e12


def cost(batch, inputs, outputs, number_bytes):
    """Return the FLOP and the bytes of a linear layer without a bias: two numbers.

    It multiplies rows [batch, inputs] by weights [inputs, outputs]. A multiplication is
    one FLOP, and an addition another one; each of the results has as many additions as
    multiplications. The bytes are those of the rows, the weights and the results, each
    read or written once. Each number has number_bytes bytes.
    """


def limit(flop, moved, flop_rate, byte_rate):
    """Return the least time that an operator can take, and what sets it.

    flop and moved are its FLOP and its bytes. The rates are what the machine does in a
    second; it computes and moves bytes at the same time. Return the seconds, and
    "memory" or "arithmetic": what takes longer.
    """


def main():
    """Print what limits a layer of 4096 × 4096, for more and more rows."""
    for batch in (1, 4, 16, 64, 256, 1024):
        costs = cost(batch, 4096, 4096, 2)
        if costs is None:
            print("cost returns nothing yet")
            break
        found = limit(*costs, FLOP_RATE, BYTE_RATE)
        if found is None:
            print(f"batch {batch}: {costs[0] / costs[1]:.1f} FLOP per byte")
        else:
            print(f"batch {batch}: at least {1e6 * found[0]:.1f} µs, limit {found[1]}")


if __name__ == "__main__":
    main()
