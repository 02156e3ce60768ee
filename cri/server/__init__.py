"""The CRI services: each RPC handed to its verb."""
