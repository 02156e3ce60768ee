"""Usage of the command: its arguments, their completion, and the schema of its documents."""
