"""Records of pod sandboxes and containers, their database, and their events."""
