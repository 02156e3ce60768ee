"""The verbs on workloads, which are processes in zones; pure logic over the ports."""
