"""The verbs on workloads (processes in zones); pure logic over the ports."""
