"""What is seen while a program runs: its models, its training, where its values go."""
