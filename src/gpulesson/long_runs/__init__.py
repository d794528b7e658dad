"""Training runs that outlive their process."""
