"""The image store: index, files, and removal."""
