"""An API server with one node, for tests of the labeller."""
