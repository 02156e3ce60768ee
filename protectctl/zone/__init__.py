"""``protect zone`` and ``protect workload``: verbs on zones and on what runs in them."""
