"""The HTTP request that begins a stream."""
