"""PyTorch's functions, methods and classes, replaced where they say or do something about a device."""
