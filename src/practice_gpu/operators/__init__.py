"""Every ATen operator: how it comes here, where it runs, and what CUDA refuses."""
