"""Pods without end and random faults: a leak shows as growth."""
