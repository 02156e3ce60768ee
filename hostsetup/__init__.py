"""What an operator runs on a host before and beside the daemons: its set-up, and the doctor."""
