"""Log readers and writers for tests."""
