"""Replacements for PyTorch's functions, methods and classes that deal with devices."""
