"""``xenpod-setup``: makes a Debian machine a node, says first what it will do, and can undo it."""
