"""The size of a zone that runs: changed when asked to, or by what it uses."""
