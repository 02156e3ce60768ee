"""Values, ports and errors, for all of protectd."""
