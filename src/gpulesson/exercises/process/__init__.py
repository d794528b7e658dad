"""The learner's process: its start, its folder, its bounds, its end."""
