"""Checks of CRI requests: a field that cannot be honoured is refused by its name."""
