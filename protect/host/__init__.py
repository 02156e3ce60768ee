"""protectd's interface to the host's kernel: loop devices, mounts, mount namespaces, id maps."""
