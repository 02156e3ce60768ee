"""Kubernetes' own e2e suite on a cluster of xenpod: DNS, proxy, images, and the run itself."""
