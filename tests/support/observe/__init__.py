"""What receives what the daemons tell about themselves."""
