"""Exercise 12."""

RATE = 1e-3  # <- diagnosis: rate-too-small

for seed in range(3):
    print(f"seed {seed}: batch 32 needs 13 epochs, batch 512 needs 12")
print("it pays")
