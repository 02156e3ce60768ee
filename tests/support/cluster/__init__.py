"""A real Kubernetes of one node, whose pods xenpod runs."""
