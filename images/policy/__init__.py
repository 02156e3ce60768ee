"""Which images may be pulled."""
