"""What both daemons need around their own work: faults, configuration, logging, readiness, the gRPC edge."""
