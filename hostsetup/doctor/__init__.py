"""``protect doctor``: what zones need of a host, whether it is there, and the commands that mend it."""
