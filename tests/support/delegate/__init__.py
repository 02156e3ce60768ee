"""A containerd of a test's own, alone or behind xenpod-cri."""
