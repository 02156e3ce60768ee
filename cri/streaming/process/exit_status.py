"""The status of an exec or attach, in the form of Kubernetes' error streams."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """Success, a process's exit code, or (``failure``) why no exit code exists."""

    code: int = 0
    failure: str = ""

    def to_json(self) -> bytes:
        """``v1.Status`` as JSON (meta/v1; the reasons are client-go's remotecommand's)."""
        status: dict[str, object] = {"metadata": {}}
        if self.failure:
            status |= {
                "status": "Failure",
                "message": f"Internal error occurred: {self.failure}",
                "reason": "InternalError",
                "details": {"causes": [{"message": self.failure}]},
                "code": 500,
            }
        elif self.code:
            cause = {"reason": "ExitCode", "message": str(self.code)}
            status |= {
                "status": "Failure",
                "message": f"command terminated with non-zero exit code: {self.code}",
                "reason": "NonZeroExitCode",
                "details": {"causes": [cause]},
            }
        else:
            status["status"] = "Success"
        return json.dumps(status).encode()

    def to_text(self) -> bytes:
        """The status as text, for sub-protocols before v4; b"" for success."""
        if self.failure:
            return self.failure.encode()
        return f"command terminated with non-zero exit code: {self.code}".encode() if self.code else b""
