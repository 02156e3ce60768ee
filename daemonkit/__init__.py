"""What both daemons share: start and stop, configuration, logging, faults, tasks, the gRPC server."""

import os

# Without this, gRPC's core stops its threads at every fork of the process, and aborts the child when it
# cannot.  libxl forks from its own threads for hotplug scripts and to build domains; those children only
# exec.  gRPC reads the variable once, when it first starts, so this package has to be imported before that.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
