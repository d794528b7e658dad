"""Exercise 12, solved: fewer updates in an epoch, so each has to be longer."""

UPDATES = {
    32: 38,
    512: 3,
}  # 37.5 and 2.3, rounded up: the shorter last batch counts, too

RATE = 5e-2  # for the large batch
