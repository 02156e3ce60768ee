"""Programs that an operator runs on a host before and beside the daemons: set-up and doctor."""
