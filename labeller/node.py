"""Changes the labels of a Node object through the Kubernetes API.

kubernetes_asyncio is imported when it is first used: it takes a third of a second and 60 MiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from daemonkit.faults import Broken, Denied, Fault, Invalid, Missing, Unreachable
from labeller.labels import Labels, is_ours

CHECK = 300.0
"""Seconds after which the node is read again even if nothing has changed here."""

_OPERATION = "label node"
_TIMEOUT = 30.0
_MERGE = "application/merge-patch+json"  # RFC 7386: null removes a key
_RIGHTS = "it needs get and patch of nodes; a kubelet's own credentials suffice for its node"


class NodeLabels:
    """The labeller's labels of one node; all others stay as they are.

    A ``kubeconfig`` of None means the service account of the pod that this runs in.
    """

    def __init__(self, name: str, kubeconfig: Path | None) -> None:
        self._name = name
        self._kubeconfig = kubeconfig
        self._put: Labels | None = None
        self._check_at = 0.0

    async def put(self, labels: Labels) -> bool:
        """Write these labels, and remove all others that are ours; returns whether any changed.

        Denied, Missing, Unreachable: the API server refused, knows no such node, or does not answer.
        Invalid: there are no usable credentials.
        """
        if labels == self._put and time.monotonic() < self._check_at:
            return False
        self._put = None  # a patch whose answer does not come may have been made
        changed = await self._exchange(labels)
        self._put = labels
        self._check_at = time.monotonic() + CHECK * random.uniform(0.8, 1.2)
        return changed

    async def remove(self) -> bool:
        """Remove all our labels from the node; returns whether there were any."""
        self._put = None
        return await self._exchange({})

    async def _exchange(self, wanted: Labels) -> bool:
        """Read the node, and patch what differs.  Credentials are read each time, since they are rotated."""
        async with self._api() as api:
            node = await api.read_node(self._name, _request_timeout=_TIMEOUT)
            metadata = getattr(node, "metadata", None)
            if metadata is None or metadata.name != self._name:
                raise Broken(_OPERATION, self._name, "the API server's answer is not this node")
            patch = difference(metadata.labels or {}, wanted)
            if patch:
                body = {"metadata": {"labels": patch}}
                await api.patch_node(self._name, body, _request_timeout=_TIMEOUT, _content_type=_MERGE)
        return bool(patch)

    @contextlib.asynccontextmanager
    async def _api(self) -> AsyncIterator[Any]:
        """A client of the API; errors in the block are raised as Faults."""
        import aiohttp
        from kubernetes_asyncio import client

        configuration = await self._configuration()
        try:
            async with asyncio.timeout(2 * _TIMEOUT), client.ApiClient(configuration) as link:
                yield client.CoreV1Api(link)
        except client.ApiException as error:
            raise self._refused(error) from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, client.OpenApiException) as error:
            # OSError: files that kubeconfig names.  The last two: an answer that is no Node.
            cause = str(error)[:300] or "no answer in time"
            raise Unreachable(_OPERATION, self._name, f"{configuration.host}: {cause}") from error

    async def _configuration(self) -> Any:
        from kubernetes_asyncio import client, config

        configuration = client.Configuration()
        try:
            if self._kubeconfig is None:
                config.load_incluster_config(client_configuration=configuration)
            else:
                with self._kubeconfig.open("rb"):
                    pass  # the library says only that there is no configuration
                await config.load_kube_config(
                    str(self._kubeconfig), client_configuration=configuration, persist_config=False
                )
        except Exception as error:  # of its YAML and its own, without a common base
            where = str(self._kubeconfig or "the service account of this pod")
            cause = " ".join(str(getattr(error, "strerror", None) or error).split())[:300]
            hint = "name a file with --kubeconfig"
            raise Invalid("read credentials from", where, cause or type(error).__name__, hint) from error
        return configuration

    def _refused(self, error: Any) -> Fault:
        cause = _message(error)
        match error.status:
            case 401 | 403:
                return Denied(_OPERATION, self._name, cause, _RIGHTS)
            case 404:
                return Missing(
                    _OPERATION, self._name, cause, "the kubelet has not registered it, or --name is wrong"
                )
            case 408 | 409 | 429 | 500 | 502 | 503 | 504:
                return Unreachable(_OPERATION, self._name, cause)
        return Broken(_OPERATION, self._name, cause)


def difference(there: Labels, wanted: Labels) -> Mapping[str, str | None]:
    """The merge patch that turns ``there`` into ``wanted``; labels that are not ours are left out."""
    patch: dict[str, str | None] = {key: None for key in there if is_ours(key) and key not in wanted}
    patch.update((key, value) for key, value in wanted.items() if there.get(key) != value)
    return patch


def _message(error: Any) -> str:
    """The API server's message, from its Status."""
    try:
        said = json.loads(error.body)["message"]
    except (ValueError, TypeError, KeyError):
        said = error.reason
    return f"{str(said)[:300]} [{error.status}]"
