"""A container's volumes: from CRI mounts to what protectd shares, and what the OCI configuration binds."""
