"""Size changes of running zones, on request or by use."""
