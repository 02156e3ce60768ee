"""Tools of a checkout, not installed: a node in the foreground, and the reference pages."""
