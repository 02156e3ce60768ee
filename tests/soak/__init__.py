"""Pods without end and faults at random: whatever leaks is found by its growth."""
