"""Any annotations of a pod; longer by hand: ``python -m tests.fuzz annotations``."""

from __future__ import annotations

from hypothesis import given, settings

from tests.fuzz.annotations import Asked, plan, pods


@given(pods())
@settings(max_examples=500)
def test_any_annotations_stay_inside_the_handlers_bounds_or_are_refused(asked: Asked) -> None:
    plan(asked)
