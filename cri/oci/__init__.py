"""The OCI runtime configuration of a container, made of small pure functions."""
