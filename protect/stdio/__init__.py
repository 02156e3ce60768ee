"""Delivers a workload's output to the CRI log file and to live readers."""
