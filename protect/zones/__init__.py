"""The verbs on zones, each of which is a Xen virtual machine; pure logic over the ports."""
