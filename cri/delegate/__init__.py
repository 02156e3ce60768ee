"""Another runtime behind ours: pods that are not for zones go to it whole (docs/adr/0023-delegation.md)."""
