"""A pod's network: a namespace, and a chain of plugins called in it (CNI specification, section 4)."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

from cri.cni import netns, pod
from cri.cni.conf import ConfDir
from cri.cni.plugin import Call, Plugins
from cri.state.attachment import UNLIMITED, Attachment, BandwidthLimits, Chain, Json, Plugin, addresses_of
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Broken, Exhausted, TooLate
from daemonkit.host.disk_space import is_full
from xenpod_proto.cri.v1 import runtime_pb2 as cri


class Network:
    """Attaches pods to the configured network."""

    def __init__(
        self, conf: ConfDir, plugins: Plugins, netns_dir: Path, hold_dir: Path, timeout: float
    ) -> None:
        self._conf = conf
        self._plugins = plugins
        self._netns_dir = netns_dir
        self._hold_dir = hold_dir
        self._timeout = timeout

    def check(self) -> Chain:
        """The configuration in force; Refused, with the reason: attaching a pod is impossible now."""
        chain = self._conf.load()
        for plugin in chain.plugins:
            self._plugins.find(plugin.type)
        return chain

    def plan(
        self, sandbox_id: str, config: cri.PodSandboxConfig, most: BandwidthLimits = UNLIMITED
    ) -> Attachment:
        """Plan a pod's attachment, without doing anything yet.  Refused, Denied: the plan is impossible."""
        netns_path = self._netns_dir / f"xenpod-{sandbox_id[:32]}"
        return pod.attachment(sandbox_id, config, self.check(), netns_path, most)

    async def attach(self, attachment: Attachment, made: Callable[[], None] = lambda: None) -> Attachment:
        """Make the namespace and ADD; returns the attachment with its result.  A failure leaves work for
        detach.

        ``made`` is called once the namespace exists, before ADD.
        """
        async with _faults("attach pod", attachment), self._hold(attachment) as hold:
            await netns.create_netns(attachment.netns)
            checkpoint("network.namespace-made")
            made()
            result: Json | None = None
            for plugin in attachment.chain.plugins:
                output = await self._plugins.call(_call("ADD", plugin, attachment, result, hold))
                result = _result(plugin, output)
                checkpoint("network.plugin-added")
        try:
            addresses = addresses_of(result or {}, attachment.netns, attachment.interface)
        except ValueError as error:
            raise Broken("read CNI result", attachment.chain.name, str(error)) from None
        if not addresses:
            raise Broken("read CNI result", attachment.chain.name, f"no address for {attachment.interface}")
        return replace(attachment, result=result, addresses=addresses)

    async def detach(self, attachment: Attachment) -> None:
        """DEL in reverse, and remove the namespace; parts already gone succeed.

        Every plugin is called even if some fail.  The first failure is raised, and the namespace is kept for
        the next attempt.
        """
        async with _faults("detach pod", attachment), self._hold(attachment) as hold:
            failure: Exception | None = None
            for plugin in reversed(attachment.chain.plugins):
                try:
                    await self._plugins.call(_call("DEL", plugin, attachment, attachment.result, hold))
                except Exception as error:
                    failure = failure or error
                checkpoint("network.plugin-deleted")
            if failure is not None:
                raise failure
            await netns.remove_netns(attachment.netns)
            checkpoint("network.namespace-gone")
            self._hold_path(attachment).unlink(missing_ok=True)

    def _hold_path(self, attachment: Attachment) -> Path:
        return self._hold_dir / f"{attachment.container_id}.lock"

    @contextlib.asynccontextmanager
    async def _hold(self, attachment: Attachment) -> AsyncIterator[int]:
        """Hold a lock that our plugins inherit.

        After a SIGKILL, the next daemon waits for the dead daemon's plugins; otherwise their ADD might come
        after its DEL.
        """
        self._hold_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._hold_path(attachment), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await self._wait(descriptor, attachment)
            yield descriptor
        finally:
            os.close(descriptor)

    async def _wait(self, descriptor: int, attachment: Attachment) -> None:
        own = os.dup(descriptor)  # for the thread, which may outlast this call

        def lock() -> None:
            try:
                fcntl.flock(own, fcntl.LOCK_EX)
            finally:
                os.close(own)

        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.get_running_loop().run_in_executor(None, lock)
        except TimeoutError:
            raise TooLate("wait for CNI plugins of", attachment.container_id, "they still run") from None


@contextlib.asynccontextmanager
async def _faults(operation: str, attachment: Attachment) -> AsyncIterator[None]:
    """Raise the kernel's errors (no space for the lock, no memory for a plugin) as faults."""
    try:
        yield
    except OSError as error:
        cause = f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")
        if is_full(error):
            raise Exhausted(operation, attachment.container_id, cause, "free some space") from error
        raise Broken(operation, attachment.container_id, cause) from error


def _call(command: str, plugin: Plugin, attachment: Attachment, previous: Json | None, hold: int) -> Call:
    """A plugin's standard input and environment (specification, sections 3 and 5)."""
    config = {**plugin.config, "cniVersion": attachment.chain.version, "name": attachment.chain.name}
    wanted = {k: v for k, v in attachment.runtime_config.items() if k in plugin.capabilities}
    if wanted:
        config["runtimeConfig"] = wanted
    if previous is not None:
        config["prevResult"] = previous
    gone = command == "DEL" and not netns.is_there(attachment.netns)
    environment = {
        "CNI_CONTAINERID": attachment.container_id,
        "CNI_NETNS": "" if gone else str(attachment.netns),
        "CNI_IFNAME": attachment.interface,
        "CNI_ARGS": ";".join(f"{key}={value}" for key, value in attachment.args.items()),
    }
    return Call(command, plugin.type, environment, config, hold)


def _result(plugin: Plugin, output: bytes) -> Json:
    try:
        value = json.loads(output)
    except (ValueError, RecursionError) as error:
        raise Broken("read CNI result of", plugin.type, f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Broken("read CNI result of", plugin.type, "not a JSON object")
    return value
