"""What of a CRI request can be honoured; everything else is refused by name."""
