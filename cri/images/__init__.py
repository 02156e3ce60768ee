"""Container images: found, pulled, verified, turned into one read-only filesystem image each, and kept.

``service.add_image_services`` puts the two gRPC services on a server, CRI's and ``operator``'s;
``store.ImageStore`` is what the rest of ``cri`` asks for an image's configuration and filesystem.
"""
