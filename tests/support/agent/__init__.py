"""Zones and agents for tests."""
