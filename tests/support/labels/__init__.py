"""What the labeller talks to: an API server with one node."""
