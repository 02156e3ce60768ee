"""What protectd asks of the host's kernel: loop devices, mounts, mount namespaces, id maps."""
