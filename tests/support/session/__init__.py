"""What every run of pytest has: time limits, a list of allowed skips, hypothesis profiles."""
