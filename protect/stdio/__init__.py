"""What becomes of a workload's output: the CRI log file, and live readers."""
