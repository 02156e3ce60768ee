"""Zones: one Xen virtual machine each; pure logic over the ports."""
