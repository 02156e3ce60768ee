"""protectd for tests."""
