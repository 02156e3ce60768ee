"""``protect zone`` and ``protect workload``: verbs on zones and on their workloads."""
