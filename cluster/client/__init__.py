"""The client of the Kubernetes API for all our programs: credentials, and errors as faults."""
