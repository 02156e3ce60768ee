"""Images for two runtimes: ours and the delegate's."""
