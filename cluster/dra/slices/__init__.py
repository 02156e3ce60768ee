"""The node's resources in ResourceSlices."""
