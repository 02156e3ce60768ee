"""Makes the objects by which a cluster uses zones, and changes manifests for zones."""
