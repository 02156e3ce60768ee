"""The verbs on zones (Xen virtual machines); pure logic over the ports."""
