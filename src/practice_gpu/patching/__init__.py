"""How parts of PyTorch are replaced and put back, and what stands for the parts that refuse."""
