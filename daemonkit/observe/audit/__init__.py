"""The audit log: who called what that changes something, and how it ended; in a chain that shows cuts."""
