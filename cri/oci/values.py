"""What the parts of an OCI configuration share."""

from __future__ import annotations

from collections.abc import Mapping

CREATE = "create container"
Json = Mapping[str, object]
