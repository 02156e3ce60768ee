"""How a worker talks to the registries of one pull: HTTP, TLS, challenges, retries, downloads."""
