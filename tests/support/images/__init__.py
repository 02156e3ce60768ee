"""Images and registries for tests."""
