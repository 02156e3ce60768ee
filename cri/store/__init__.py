"""What must survive the daemon: SQLite."""
