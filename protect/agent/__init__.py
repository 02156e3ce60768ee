"""The client of a zone's agent: its calls as methods, its answers as values."""
