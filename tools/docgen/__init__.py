"""Generates the documentation's site, and its parts that are made from the code."""
