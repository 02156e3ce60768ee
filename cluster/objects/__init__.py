"""Makes the objects that a cluster needs to use zones, and changes manifests for them."""
