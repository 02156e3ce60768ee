"""``protect host`` and its neighbours: facts about this host, its devices, and its faults."""
