"""``protect host``, ``device`` and ``doctor``: facts, devices and faults of this host."""
