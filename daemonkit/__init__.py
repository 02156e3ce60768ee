"""Shared code of the daemons: start and stop, configuration, logging, faults, tasks, the gRPC server."""

import os

# Without this, gRPC's core stops its threads at every fork of the process, and aborts the child on failure.
# libxl forks from its own threads for hotplug scripts and to build domains; the children only exec.  gRPC
# reads the variable once, at its first start: import this package earlier.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
