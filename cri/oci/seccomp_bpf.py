"""Hands containers' seccomp profiles to crun compiled, in the annotation ``run.oci.seccomp_bpf_data``.

Otherwise crun would compile the same profile for every container, which takes most of the time of its
``create``.  A crun without support for the annotation still does.  Source: crun(1).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from daemonkit.host import seccomp

ANNOTATION = "run.oci.seccomp_bpf_data"


def compiled(profile: Mapping[str, Any]) -> str:
    """The annotation's value for a profile: see ``daemonkit.host.seccomp.compiled``."""
    return base64.b64encode(seccomp.compiled(profile)).decode()
