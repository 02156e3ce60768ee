"""Zone memory as devices of a device plugin, for clusters without claims: so many granules of one size."""
