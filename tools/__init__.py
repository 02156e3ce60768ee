"""Tools of a checkout, which nothing installs: a node in the foreground, and the reference pages."""
