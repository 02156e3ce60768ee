"""Labels of a node: what it can, as xenpod-cri says, kept true in Kubernetes."""
