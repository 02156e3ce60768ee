"""Workloads: the processes that run in zones; pure logic over the ports."""
