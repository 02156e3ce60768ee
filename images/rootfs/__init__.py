"""Makes filesystem images from the entries of layers."""
