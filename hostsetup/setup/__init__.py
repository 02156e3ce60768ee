"""``xenpod-setup``: makes a Debian machine a node, after showing a plan, and can undo the changes."""
