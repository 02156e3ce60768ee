"""Container images: found, pulled, verified, turned into one read-only filesystem image each, and kept.

``service.add_image_services`` puts the two gRPC services (CRI's, and ``operator``'s) on a server; ``store.ImageStore`` is what the rest
of ``cri`` asks for an image's configuration and filesystem.
"""
