"""Pulls and verifies container images, turns each into read-only filesystem images, and stores them.

``service.add_image_services`` adds two gRPC services to a server, CRI's and ``operator``'s;
``store.ImageStore`` gives the rest of ``cri`` an image's configuration and filesystem.
"""
