"""Services of the host's kernel for the daemons: files, mounts, control groups, processes."""
