"""The host's kernel: loop devices, mounts, mount namespaces, id maps."""
