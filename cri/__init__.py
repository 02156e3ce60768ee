"""The CRI v1 server: pod sandboxes, containers and images in front of protectd."""
