"""The image services: CRI's ImageService and xenpod.images.v1."""
