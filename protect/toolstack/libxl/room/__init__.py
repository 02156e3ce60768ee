"""What a Xen host has room for: domains that are refused, settings that bound them, what disks cost."""
