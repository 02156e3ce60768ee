"""Generates the documentation's site, and its parts made from the code."""
