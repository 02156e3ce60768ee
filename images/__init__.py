"""Pulls and verifies container images, turns each into read-only filesystem images, and keeps them.

``service.add_image_services`` puts the two gRPC services on a server, CRI's and ``operator``'s;
``store.ImageStore`` is what the rest of ``cri`` asks for an image's configuration and filesystem.
"""
