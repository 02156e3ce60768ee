"""A container's volumes: CRI mounts become what protectd shares, and what the OCI configuration binds."""
