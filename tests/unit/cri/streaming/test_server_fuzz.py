"""Random clients of exec, attach and port-forward; longer by hand: ``python -m tests.fuzz streams``."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from tests.fuzz.streams import Session, serve, sessions


@given(sessions())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_sessions_end_in_bounded_memory(session: Session) -> None:
    serve(session)
