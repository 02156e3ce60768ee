"""How the command is used: its arguments, completion of them, and what its documents are like."""
