"""CUDA graphs: PyTorch's objects for them, and what they consist of."""
