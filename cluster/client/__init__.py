"""The Kubernetes API, for those of our programs that ask it: credentials, and errors as faults."""
