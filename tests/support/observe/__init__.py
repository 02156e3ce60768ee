"""Receivers of the daemons' metrics, traces and logs."""
