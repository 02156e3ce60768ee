"""Makes the OCI runtime configuration of a container, by small pure functions."""
