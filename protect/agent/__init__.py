"""The client of a zone's agent, with methods for its calls and values for its answers."""
