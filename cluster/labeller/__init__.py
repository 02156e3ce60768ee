"""The node labeller: keeps labels about a node's capabilities, from xenpod-cri's reports."""
