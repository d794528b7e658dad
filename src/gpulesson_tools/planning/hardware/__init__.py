"""Tables of GPUs and of what joins them."""
