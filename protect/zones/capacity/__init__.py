"""Room on this host: owners of memory, promises, number of zones."""
