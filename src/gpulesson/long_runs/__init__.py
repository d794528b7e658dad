"""Training runs that outlive their process, and runs of several processes."""
