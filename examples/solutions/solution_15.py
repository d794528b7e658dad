"""Exercise 15, solved: each byte once, and the longer of two times."""


def cost(batch, inputs, outputs, number_bytes):
    flop = 2 * batch * inputs * outputs
    numbers = batch * inputs + inputs * outputs + batch * outputs
    return flop, number_bytes * numbers


def limit(flop, moved, flop_rate, byte_rate):
    computing, moving = flop / flop_rate, moved / byte_rate
    return max(computing, moving), "memory" if moving > computing else "arithmetic"
