"""The image store: index, files, and what may be removed."""
