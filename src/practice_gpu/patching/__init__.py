"""How parts of PyTorch are replaced and restored, and what raises errors because it is not simulated."""
