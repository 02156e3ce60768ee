"""What a cluster has to know of nodes with zones, as Kubernetes objects, flags and commands."""
