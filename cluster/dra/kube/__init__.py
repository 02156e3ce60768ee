"""What the driver asks of the API server."""
