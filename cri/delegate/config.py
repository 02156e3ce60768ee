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
    """Which runtime gets the pods that name no runtime handler."""

    DELEGATE = "delegate"
    XENPOD = "xenpod"


class HostNetwork(Enum):
    """What happens to a pod that is for our handlers but asks for the host's network."""

    REFUSE = "refuse"
    CLASSLESS = "classless"
    """A pod that names no handler goes to the delegate; any other is refused."""
    DELEGATE = "delegate"


@dataclass(frozen=True, slots=True)
class DelegateConfig:
    """The delegate, and which pods go to it.  An empty ``endpoint``: there is no delegate."""

    endpoint: str = ""
    default: Unnamed = Unnamed.DELEGATE
    host_network: HostNetwork = HostNetwork.CLASSLESS
    namespaces: tuple[str, ...] = ("kube-system",)
    """Patterns of the namespaces whose pods may start in the delegate."""
    timeout: Seconds = Seconds(5.0)
    """Deadline of calls that only read, in seconds.  A caller's shorter deadline is kept."""
    keep: Seconds = Seconds(120.0)
    """How many seconds its last lists are shown while it does not answer."""

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
