"""The table ``[delegate]`` of cri.toml; every key is explained in packaging/cri.toml."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from daemonkit.config import Seconds, longer_than_nothing, socket_path
from daemonkit.convert import WrongKey

_SCHEME = "unix://"


class Unnamed(Enum):
    """Who gets the pods that name no runtime handler."""

    DELEGATE = "delegate"
    XENPOD = "xenpod"


class HostNetwork(Enum):
    """What a pod gets that is for our handlers and asks for the host's network."""

    REFUSE = "refuse"
    CLASSLESS = "classless"
    """The delegate, when the pod names no handler; else an error."""
    DELEGATE = "delegate"


@dataclass(frozen=True, slots=True)
class DelegateConfig:
    """The other runtime, and what goes to it.  ``endpoint`` "": there is none."""

    endpoint: str = ""
    default: Unnamed = Unnamed.DELEGATE
    host_network: HostNetwork = HostNetwork.CLASSLESS
    timeout: Seconds = Seconds(5.0)
    """Deadline for what only reads; the caller's, where that is shorter."""
    keep: Seconds = Seconds(120.0)
    """For how long its lists are shown as it last said, while it does not answer."""

    def __post_init__(self) -> None:
        longer_than_nothing(self, "timeout", "keep")
        if not self.endpoint:
            return
        if not self.endpoint.startswith(f"{_SCHEME}/"):
            raise WrongKey("endpoint", f"{self.endpoint!r:.80} is not {_SCHEME} and an absolute path")
        if "\0" in self.endpoint:
            raise WrongKey("endpoint", "a path cannot contain a NUL character")
        socket_path("endpoint", self.path)

    @property
    def path(self) -> Path:
        """Where it listens."""
        return Path(self.endpoint.removeprefix(_SCHEME))
