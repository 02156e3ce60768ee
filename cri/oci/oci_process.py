"""Makes the OCI ``process`` object: the command, its directory, user, and rights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cri.checks.fields import CREATE
from cri.checks.mounts import place
from cri.oci.capabilities import ALL, capabilities
from cri.oci.user import User, in_passwd
from cri.oci.values import Json, RootImage
from cri.state.container import Container
from daemonkit.faults import Invalid
from xenpod_proto.cri.v1 import runtime_pb2 as cri

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_WORDS_BYTES = 512 * 1024
_OOM_MAX = 1000
HARD_OPEN_FILES = 524_288
"""systemd's DefaultLimitNOFILE since version 240."""
_PASSWD_MOUNTS = ("/etc", "/etc/passwd")


def process(
    config: cri.ContainerConfig,
    image: RootImage,
    who: User,
    hostname: str,
    nofile: int,
    everything: frozenset[str] = frozenset(ALL),
) -> dict[str, object]:
    """A container's first process; ``everything``: the expansion of the capability ALL."""
    security = config.linux.security_context
    made: dict[str, object] = {
        "terminal": config.tty,
        "user": _user(who),
        "args": arguments(config, image),
        "env": with_home(environment(config, image, hostname), config, image, who),
        "cwd": _directory(config.working_dir or image.working_dir),
        "capabilities": capabilities(security.capabilities, everything, privileged=security.privileged),
        "rlimits": [_open_files(nofile, everything)] if nofile else [],
        "noNewPrivileges": security.no_new_privs,
    }
    # Lowering the score needs CAP_SYS_RESOURCE, not granted by every host.  In a zone only the order counts.
    if 0 < (score := config.linux.resources.oom_score_adj) <= _OOM_MAX:
        made["oomScoreAdj"] = score
    return made


def _open_files(soft: int, everything: frozenset[str]) -> Json:
    """RLIMIT_NOFILE.  A process may raise the soft limit itself, as far as under containerd 2 and systemd."""
    # A host that cannot grant CAP_SYS_RESOURCE may not be able to raise a hard limit, either.
    hard = max(soft, HARD_OPEN_FILES) if "SYS_RESOURCE" in everything else soft
    return {"type": "RLIMIT_NOFILE", "soft": soft, "hard": hard}


def bounding(process: Mapping[str, Any]) -> list[str]:
    """The bounding set of a process object."""
    return list(process["capabilities"]["bounding"])


def arguments(config: cri.ContainerConfig, image: RootImage) -> list[str]:
    """The command line: CRI's command replaces entrypoint and cmd, its args replace only cmd."""
    head = list(config.command) or list(image.entrypoint)
    tail = list(config.args) or ([] if config.command else list(image.cmd))
    words = head + tail
    if not words or not words[0]:
        raise Invalid(CREATE, config.metadata.name, "no command, and the image has none")
    check_words("command", words)
    return words


def check_words(field: str, words: Sequence[str]) -> None:
    """Invalid unless execve(2) can take these words: no NUL, and a limited total size."""
    if any("\0" in word for word in words):
        raise Invalid(CREATE, field, "it contains a NUL character")
    if sum(len(word.encode()) + 1 for word in words) > _WORDS_BYTES:
        raise Invalid(CREATE, field, f"larger than {_WORDS_BYTES} bytes together")


def environment(config: cri.ContainerConfig, image: RootImage, hostname: str) -> list[str]:
    """The environment: defaults, the image's variables, CRI's; the last value of a name counts."""
    pairs = [PATH, f"HOSTNAME={hostname}", *(["TERM=xterm"] if config.tty else []), *image.env]
    pairs += [f"{pair.key}={_text(pair.key, pair.value)}" for pair in config.envs]
    check_words("envs", pairs)
    return list(_last(pairs))


def with_home(env: Sequence[str], config: cri.ContainerConfig, image: RootImage, who: User) -> list[str]:
    """Add HOME, "/", for a user who is not in the image's passwd.  An empty HOME counts as none.

    At start and at each exec, crun sets HOME for users in the container's /etc/passwd, and "/" if the file is
    missing.  For other users crun sets no HOME, but runc does.
    """
    env = [pair for pair in env if pair != "HOME="]
    mounted = any(place(mount.container_path) in _PASSWD_MOUNTS for mount in config.mounts)
    if mounted or not image.passwd or in_passwd(who.uid, image.passwd):
        return env
    return env if any(pair.startswith("HOME=") for pair in env) else [*env, "HOME=/"]


def _last(pairs: Iterable[str]) -> Iterable[str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, _ = pair.partition("=")
        if name and equals:
            found[name] = pair
    return found.values()


def _text(key: str, value: bytes) -> str:
    """A value as text, since JSON has no bytes."""
    if not key or "=" in key:
        raise Invalid(CREATE, f"env {key!r:.80}", "not a variable's name")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Invalid(CREATE, f"env {key}", "its value is not UTF-8") from None


def _directory(path: str) -> str:
    path = path or "/"
    if not path.startswith("/") or "\0" in path or len(path) > 4095:
        raise Invalid(CREATE, f"working directory {path!r:.80}", "not an absolute path")
    return path


def _user(who: User) -> Json:
    return {"uid": who.uid, "gid": who.gid, "additionalGids": list(who.groups)}


def exec_process(container: Container, command: Sequence[str], *, tty: bool) -> str:
    """A container's OCI process object, JSON, with another command, and its own terminal or none."""
    if not command or not command[0]:
        raise Invalid("exec in", container.id, "no command")
    check_words("cmd", command)
    process = json.loads(container.process)
    env = process.get("env", [])
    if tty and not any(entry.startswith("TERM=") for entry in env):
        env = [*env, "TERM=xterm"]
    return json.dumps({**process, "args": list(command), "terminal": tty, "env": env})
