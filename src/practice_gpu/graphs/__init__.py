"""CUDA graphs: PyTorch's objects for them, and the recording of their operators."""
