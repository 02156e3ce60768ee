"""``protect doctor``: checks each need of zones on this host, and prints the commands that mend the host."""
