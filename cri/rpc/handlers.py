"""Finds the usable runtime handlers, and why others are unusable."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.json_format import MessageToDict

from cri.checks.handlers import fallback, mode_name, trouble, unmet, zone_mode
from cri.config import DEFAULT_HANDLER, CriConfig, HandlerConfig
from daemonkit.convert import WrongKey
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb


def troubles(config: CriConfig, host: pb.InfoResponse) -> Mapping[str, WrongKey]:
    """By handler name, the wrong key.  Unmet requirements do not count."""
    found = {name: trouble(handler, host) for name, handler in config.handlers.items()}
    return {name: wrong for name, wrong in found.items() if wrong}


def unusable(config: CriConfig, host: pb.InfoResponse) -> Mapping[str, str]:
    """By handler name, why the handler is unusable: a wrong key, or a requirement not met by this host."""
    wrong = {name: one.cause for name, one in troubles(config, host).items()}
    found = {name: wrong.get(name) or unmet(handler, host) for name, handler in config.handlers.items()}
    return {name: why for name, why in found.items() if why}


def usable(config: CriConfig, host: pb.InfoResponse | None) -> list[cri.RuntimeHandler]:
    """The usable handlers of pods.  The default handler is listed under its name and as ""."""
    if host is None:
        return []
    wrong = unusable(config, host)
    found = sorted(name for name in config.handlers if name not in wrong)
    features = cri.RuntimeHandlerFeatures(
        recursive_read_only_mounts=True, user_namespaces=host.user_namespaces
    )
    default = [] if DEFAULT_HANDLER in wrong else [""]
    return [cri.RuntimeHandler(name=name, features=features) for name in [*default, *found]]


def fallbacks(config: CriConfig, host: pb.InfoResponse) -> Mapping[str, str]:
    """By name of a usable handler, why its zones are PV although PVH is preferred."""
    wrong = unusable(config, host)
    found = {name: fallback(handler, host) for name, handler in config.handlers.items() if name not in wrong}
    return {name: why for name, why in found.items() if why}


def details(config: CriConfig, host: pb.InfoResponse | None) -> dict[str, object]:
    """Details of all handlers, for people; an unusable handler has the reason."""
    found = {handler.name: handler.features for handler in usable(config, host)}
    wrong = unusable(config, host) if host is not None else {}
    shown: dict[str, object] = {}
    for name, handler in config.handlers.items():
        known: dict[str, object] = {"profile": handler.profile, "requires": list(handler.requires)}
        known |= {"seclabel": handler.seclabel} if handler.seclabel else {}
        if name in found:
            features = MessageToDict(found[name], always_print_fields_with_no_presence=True)
            shown[name] = {**known, **_mode(handler, host), "features": features}
        else:
            shown[name] = {**known, "error": wrong.get(name, "protectd does not answer")}
    return shown


def _mode(handler: HandlerConfig, host: pb.InfoResponse | None) -> dict[str, object]:
    if host is None or not (mode := zone_mode(handler, host)):
        return {}
    shown: dict[str, object] = {"mode": mode_name(mode)}
    if why := fallback(handler, host):
        shown["notice"] = why
    return shown
