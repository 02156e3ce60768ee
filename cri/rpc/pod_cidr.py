"""The pod CIDR of the kubelet (UpdateRuntimeConfig), and the network configuration made from it."""

from __future__ import annotations

import logging

from cri.cni import template
from cri.config import CniConfig
from cri.ports import PodNetwork
from daemonkit.faults import Fault
from daemonkit.logs import fields

log = logging.getLogger(__name__)


class PodCidr:
    """The pod CIDR.  The kubelet sends the CIDR again after each restart of xenpod-cri."""

    def __init__(self, network: PodNetwork, config: CniConfig) -> None:
        self._network = network
        self._config = config
        self.cidr = ""
        """The last received CIDR; "" before the first."""

    async def receive(self, cidr: str) -> None:
        """Fill the template in with the CIDR, unless a network configuration exists already.

        Invalid: not a CIDR.
        """
        networks = template.networks(cidr)
        self.cidr = cidr
        if self._config.conf_template is None:
            log.info("pod CIDR received; CNI's own configuration decides", extra=fields(cidr=cidr))
            return
        try:
            chain = self._network.check()
        except Fault:
            path = await template.write_conflist(self._config.conf_template, self._config.conf_dir, networks)
            log.info("network configuration written", extra=fields(cidr=cidr, path=path))
        else:
            log.info(
                "pod CIDR received; a network is configured", extra=fields(cidr=cidr, network=chain.name)
            )
