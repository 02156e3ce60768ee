"""The audit log: each changing call with its caller and outcome, in a hash chain that reveals cuts."""
