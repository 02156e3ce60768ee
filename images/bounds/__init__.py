"""What a stranger's bytes are held to: limits, digests, and the end of whoever waits for them."""
