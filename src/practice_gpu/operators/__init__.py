"""Every ATen operator: how it is intercepted, where it runs, and what CUDA refuses."""
