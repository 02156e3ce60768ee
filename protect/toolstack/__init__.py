"""Toolstacks: what drives domains.  See ``port``."""
