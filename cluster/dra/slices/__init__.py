"""What this node has, as ResourceSlices say it."""
