"""gRPC between daemons, and to them from commands."""
