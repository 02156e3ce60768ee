"""What both daemons ask of the host's kernel: files of others, mounts, control groups, processes."""
