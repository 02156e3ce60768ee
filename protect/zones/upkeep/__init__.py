"""Continuous work while a zone runs."""
