"""The room of a Xen host: refused domains, limiting settings, and the memory of disks."""
