"""Port-forwarding."""
