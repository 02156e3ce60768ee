"""A daemon's telemetry: metrics, traces, the audit log."""
