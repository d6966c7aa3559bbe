"""The time loop, its lanes and its record. See the modules."""
