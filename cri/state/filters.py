"""What a list request selects."""

from __future__ import annotations

from collections.abc import Mapping


def has_labels(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether every label of the selector is there with its value."""
    return all(labels.get(key) == value for key, value in selector.items())


def has_id(record_id: str, wanted: str) -> bool:
    """Whether the id is, or begins with, what is wanted; "" wants any."""
    return record_id.startswith(wanted)
