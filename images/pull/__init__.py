"""Pulling an image: resolve, plan, fetch, build, name."""
