"""Attributes of spans."""

from __future__ import annotations

from typing import TypeAlias

Value: TypeAlias = str | bool | int
"""A value of an attribute, as OpenTelemetry takes them."""
