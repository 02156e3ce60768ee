"""Containers: the records, and one file for each thing that can be done with them."""
