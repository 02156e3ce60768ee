"""What a daemon tells about itself while it runs: metrics, traces, the audit log."""
