"""The node labeller: keeps labels that say what a node can do, as xenpod-cri reports it."""
