"""The table ``[delegate]`` of cri.toml.  packaging/cri.toml explains every key."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from daemonkit.config import Seconds, longer_than_nothing, socket_path
from daemonkit.convert import WrongKey
from daemonkit.namespaces import expression

_SCHEME = "unix://"


class Unnamed(Enum):
    """Runtime for pods without a runtime handler."""

    DELEGATE = "delegate"
    XENPOD = "xenpod"


class HostNetwork(Enum):
    """Treatment of pods for our handlers that ask for the host's network."""

    REFUSE = "refuse"
    CLASSLESS = "classless"
    """Pods without a handler go to the delegate; others are refused."""
    DELEGATE = "delegate"


@dataclass(frozen=True, slots=True)
class DelegateConfig:
    """The delegate, and the choice of its pods.  An empty ``endpoint``: no delegate."""

    endpoint: str = ""
    default: Unnamed = Unnamed.DELEGATE
    host_network: HostNetwork = HostNetwork.CLASSLESS
    namespaces: tuple[str, ...] = ("kube-system",)
    """Patterns of namespaces; only their pods may start in the delegate."""
    timeout: Seconds = Seconds(5.0)
    """Deadline of read-only calls, in seconds.  A caller's shorter deadline is kept."""
    keep: Seconds = Seconds(120.0)
    """Seconds for which the delegate's last lists are shown after it stops answering."""

    def __post_init__(self) -> None:
        longer_than_nothing(self, "timeout", "keep")
        if self.namespaces:
            try:
                expression(self.namespaces)
            except ValueError as error:
                raise WrongKey("namespaces", str(error)) from None
        if not self.endpoint:
            return
        if not self.endpoint.startswith(f"{_SCHEME}/"):
            raise WrongKey("endpoint", f"{self.endpoint!r:.80} is not {_SCHEME} and an absolute path")
        if "\0" in self.endpoint:
            raise WrongKey("endpoint", "a path cannot contain a NUL character")
        socket_path("endpoint", self.path)

    @property
    def path(self) -> Path:
        """The delegate's socket."""
        return Path(self.endpoint.removeprefix(_SCHEME))
