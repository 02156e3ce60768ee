"""The client of protectd: its calls, its streams, and its stream of changes."""
