"""xenpod-cri for tests."""
