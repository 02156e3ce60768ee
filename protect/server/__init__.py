"""protect.v1 over gRPC: thin translation to zones, workloads and the host."""
