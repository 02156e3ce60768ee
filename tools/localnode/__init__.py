"""Tools of a checkout: a node on one machine (make run), the demo, and their images."""
