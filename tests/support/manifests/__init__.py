"""Manifests of Kubernetes objects: read, rendered by users' tools, and checked against schemas."""
