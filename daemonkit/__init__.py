"""What both daemons need around their own work: faults, configuration, logging, readiness, the gRPC edge."""

import os

# gRPC's core would stop its threads for every fork of the process, and end the child when it cannot (its
# assertions abort).  libxl forks from its own threads for hotplug scripts and to build domains, and those
# children only exec.  gRPC reads this once, when it first starts; nothing may start it before this package.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
