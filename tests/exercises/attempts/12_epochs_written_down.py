"""Exercise 12."""

RATE = 1e-3  # <- diagnosis: nothing-compared (no line)

for seed in range(3):
    print(f"seed {seed}: batch 32 needs 13 epochs, batch 512 needs 12")
print("it pays")
