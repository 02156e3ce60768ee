"""Runtime handlers: which can be used, and why others cannot."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.json_format import MessageToDict

from cri.checks.handlers import trouble
from cri.config import DEFAULT_HANDLER, CriConfig
from daemonkit.convert import WrongKey
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb


def troubles(config: CriConfig, host: pb.InfoResponse) -> Mapping[str, WrongKey]:
    """By name, why a handler cannot be used."""
    found = {name: trouble(handler, host) for name, handler in config.handlers.items()}
    return {name: wrong for name, wrong in found.items() if wrong}


def usable(config: CriConfig, host: pb.InfoResponse | None) -> list[cri.RuntimeHandler]:
    """The handlers that pods can have; the default one under its name and as ""."""
    if host is None:
        return []
    wrong = troubles(config, host)
    found = sorted(name for name in config.handlers if name not in wrong)
    features = cri.RuntimeHandlerFeatures(
        recursive_read_only_mounts=True, user_namespaces=host.user_namespaces
    )
    default = [] if DEFAULT_HANDLER in wrong else [""]
    return [cri.RuntimeHandler(name=name, features=features) for name in [*default, *found]]


def details(config: CriConfig, host: pb.InfoResponse | None) -> dict[str, object]:
    """All handlers, for people; for those that cannot be used, the reason."""
    found = {handler.name: handler.features for handler in usable(config, host)}
    wrong = troubles(config, host) if host is not None else {}
    shown: dict[str, object] = {}
    for name, handler in config.handlers.items():
        if name in found:
            features = MessageToDict(found[name], always_print_fields_with_no_presence=True)
            shown[name] = {"profile": handler.profile, "features": features}
        else:
            error = wrong[name].cause if name in wrong else "protectd does not answer"
            shown[name] = {"profile": handler.profile, "error": error}
    return shown
