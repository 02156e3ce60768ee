"""Plans a pod: checks its request, and decides on its record."""

from __future__ import annotations

import time
from dataclasses import dataclass

from cri.checks import sandbox as request
from cri.checks.fields import RUN
from cri.checks.handlers import unmet
from cri.checks.userns import pod_userns
from cri.config import CriConfig, EmptyDirPlace
from cri.container import host_files
from cri.oci.seccomp import local_profile
from cri.ports import Images, PodNetwork
from cri.sandbox import kernel, sizing
from cri.sandbox.disk_rates import disk_rates
from cri.state.attachment import BandwidthLimits
from cri.state.names import new_id
from cri.state.sandbox import EMPTY_DIR, Sandbox, SandboxPhase
from cri.zones.follow import HostInfo
from cri.zones.selinux import refuse_labels
from daemonkit.faults import Refused, Unsupported
from daemonkit.host.paths import HostPaths
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb


@dataclass(frozen=True, slots=True)
class PlanSandbox:
    """Checks requests, and decides on the record of a pod."""

    config: CriConfig
    images: Images
    network: PodNetwork
    host: HostInfo
    paths: HostPaths

    def plan(self, asked: cri.RunPodSandboxRequest) -> Sandbox:
        """Check the request and decide on the pod's record, without a side effect."""
        handler = request.handler_name(asked.runtime_handler, self.config.handlers)
        chosen = self.config.handlers[handler]
        request.check_sandbox(asked.config, handler, self.config.handlers)
        sizing.check_size(asked.config, self.config.zone.memory_overhead, handler, chosen)
        disk_rates(asked.config, handler, chosen)
        image = kernel.resolve_kernel(self.images, kernel.chosen(asked.config, chosen, self.config.kernels))
        sandbox_id = new_id()
        most = BandwidthLimits(handler, chosen.ingress_bandwidth, chosen.egress_bandwidth)
        place = self.network.plan(sandbox_id, asked.config, most)
        in_zone = (EMPTY_DIR,) if chosen.empty_dir is EmptyDirPlace.ZONE else ()
        return Sandbox(
            sandbox_id,
            SandboxPhase.CREATING,
            time.time_ns(),
            handler,
            asked.config,
            place,
            kernel=image,
            in_zone=in_zone,
        )

    async def prepare_host_files(self, pod: cri.PodSandboxConfig) -> None:
        """Make the log directory; Invalid or Refused for an unreadable seccomp profile."""
        path = local_profile(pod.linux.security_context, RUN)
        await host_files.seccomp_profile(self.paths, pod.metadata, path, RUN)
        await host_files.make_log_directory(self.paths, pod.metadata, pod.log_directory)

    async def check_host(self, sandbox: Sandbox) -> None:
        """Unsupported, Refused: this host cannot honour the request.  The kernel image is held."""
        await self._check_kernel(sandbox)
        await self._check_requirements(sandbox)

    async def _check_kernel(self, sandbox: Sandbox) -> None:
        """Unsupported: the toolstack's own kernel lacks a feature of the pod's request."""
        # A zone with its own kernel image reports the limits of its kernel by itself.
        if sandbox.kernel:
            return
        security = sandbox.config.linux.security_context
        await refuse_labels(self.host, RUN, sandbox.config.metadata.name, security.selinux_options)
        if id_mapping(sandbox.config) and not (await self.host.info()).user_namespaces:
            cause = "the kernel of zones has no user namespaces"
            raise Unsupported(RUN, sandbox.config.metadata.name, cause, "leave out hostUsers: false")

    async def _check_requirements(self, sandbox: Sandbox) -> None:
        """Refused: this host lacks a requirement of the handler.

        If the handler has no requirement, protectd is not asked.
        """
        handler = self.config.handlers[sandbox.handler]
        if not handler.asks_host:
            return
        if lacking := unmet(handler, await self.host.info(fresh=handler.needs_fresh_facts)):
            cause = f"this host cannot honour runtime handler {sandbox.handler}: {lacking}"
            hint = "protect host shows the handlers that it can"
            raise Refused(RUN, sandbox.config.metadata.name, cause, hint)


def id_mapping(config: cri.PodSandboxConfig) -> pb.IdMapping | None:
    mapping = pod_userns(RUN, config.metadata.name, config.linux.security_context.namespace_options)
    return pb.IdMapping(host_id=mapping.host_id, length=mapping.length) if mapping else None
