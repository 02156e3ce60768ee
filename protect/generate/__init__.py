"""What a cluster needs to use zones: objects made, and manifests changed."""
