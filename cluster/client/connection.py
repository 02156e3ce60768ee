"""A client of the Kubernetes API.

kubernetes_asyncio is imported at the first use: the import takes a third of a second and 60 MiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemonkit.faults import Broken, Denied, Exists, Fault, Invalid, Missing, Unreachable

TIMEOUT_SECONDS = 30.0
"""Seconds for one request."""
_LONGEST_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Purpose:
    """Purpose of a connection: the operation and subject of its faults, and hints by HTTP status."""

    operation: str
    subject: str
    hints: Callable[[int], str] = lambda _: ""


@contextlib.asynccontextmanager
async def api_client(kubeconfig: Path | None, purpose: Purpose) -> AsyncIterator[Any]:
    """An ApiClient; errors in the block are raised as faults.

    Credentials rotate, and are read each time.  The API server's statuses become Denied (401, 403), Missing
    (404), Exists (409, 412), Invalid (400, 422).  Invalid, too: an object is nested too deeply.  Unreachable:
    the server does not answer, or is busy.
    """
    import aiohttp
    from kubernetes_asyncio import client

    settings = await configuration(kubeconfig)
    try:
        async with asyncio.timeout(2 * TIMEOUT_SECONDS), client.ApiClient(settings) as link:
            yield link
    except client.ApiException as error:
        raise _refused(error, purpose) from error
    except RecursionError as error:  # users write parts of objects, and the server keeps them unchanged
        cause = "the object is nested too deeply to be read"
        raise Invalid(purpose.operation, purpose.subject, cause) from error
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, client.OpenApiException) as error:
        # OSError: files named by the kubeconfig.  The last two: an answer other than the expected object.
        cause = str(error)[:_LONGEST_CHARACTERS] or "no answer in time"
        raise Unreachable(purpose.operation, purpose.subject, f"{settings.host}: {cause}") from error


async def configuration(kubeconfig: Path | None) -> Any:
    """The client's settings; None: the service account of the running pod.  Invalid."""
    from kubernetes_asyncio import client, config

    found = client.Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=found)
        else:
            with kubeconfig.open("rb"):
                pass  # the library's text only repeats that no configuration exists
            await config.load_kube_config(str(kubeconfig), client_configuration=found, persist_config=False)
    except Exception as error:  # the library's and its YAML parser's errors have no common base
        where = str(kubeconfig or "the service account of this pod")
        cause = " ".join(str(getattr(error, "strerror", None) or error).split())[:_LONGEST_CHARACTERS]
        hint = "name a file with --kubeconfig, or kubeconfig of the configuration"
        raise Invalid("read credentials from", where, cause or type(error).__name__, hint) from error
    return found


def _refused(error: Any, purpose: Purpose) -> Fault:
    kind: type[Fault] = Broken
    match error.status:
        case 401 | 403:
            kind = Denied
        case 404:
            kind = Missing
        case 409 | 412:
            kind = Exists
        case 400 | 422:
            kind = Invalid
        case 408 | 429 | 500 | 502 | 503 | 504:
            kind = Unreachable
    return kind(purpose.operation, purpose.subject, _message(error), purpose.hints(error.status or 0))


def _message(error: Any) -> str:
    """The API server's message, from its Status."""
    try:
        said = json.loads(error.body)["message"]
    except (ValueError, TypeError, KeyError):
        said = error.reason
    return f"{str(said)[:_LONGEST_CHARACTERS]} [{error.status}]"
