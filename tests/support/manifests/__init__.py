"""Reads and renders manifests of Kubernetes objects, and checks them against schemas."""
