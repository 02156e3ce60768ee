"""The CRI services: each RPC is handed to its verb."""
