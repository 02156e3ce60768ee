"""gRPC between daemons, and from commands to daemons."""
