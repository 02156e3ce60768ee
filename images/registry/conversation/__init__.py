"""A worker's side of talking to registries: HTTP, TLS, challenges, retries, downloads."""
