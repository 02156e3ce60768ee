"""The driver's requests to the API server."""
