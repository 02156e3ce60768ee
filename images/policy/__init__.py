"""The operator's policy for pulls."""
