"""The memory that a recorded program takes on a GPU."""
