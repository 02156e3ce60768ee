"""The `protect` command."""
