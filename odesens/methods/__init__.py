"""One step of each family, and what chooses its size. See the modules."""
