"""What the host is to zones: what it can do, what it has room for, and what of it is reserved."""
