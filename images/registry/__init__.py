"""Registries: hosts, authentication, transport, manifests, and image names."""
