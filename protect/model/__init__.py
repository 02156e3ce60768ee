"""Values, ports and errors: what everything else in protectd is written in terms of."""
