"""The Sphinx extensions of this site."""
