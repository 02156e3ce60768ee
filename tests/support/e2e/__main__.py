"""Runs specs of Kubernetes' e2e suite on a cluster of its own, and prints each failure.

python -m tests.support.e2e 'sig-node.*Conformance' --runtime containerd
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from rich.console import Console

from tests.support.e2e.ginkgo import cluster_suite, node_suite
from tests.support.e2e.judged import judged_specs
from tests.support.e2e.rig import CACHE, RuntimeName, rig


async def main(arguments: argparse.Namespace) -> int:
    """Run the suite: 1 if a spec failed unexpectedly."""
    console = Console(soft_wrap=True, markup=False, highlight=False)
    async with rig(arguments.runtime, 1 if arguments.node else arguments.nodes) as made:
        console.print(f"cluster: {made.api.url}, kubeconfig: {made.kubeconfig}")
        suite = node_suite(made.api, made.nodes[0]) if arguments.node else cluster_suite(made.kubeconfig)
        result = await judged_specs(
            made, arguments.out, suite, arguments.focus, at_once=arguments.at_once, skip=arguments.skip
        )
    passed = sum(one.passed for one in result.specs)
    summary = f"{passed} of {len(result.specs)} specs passed; log and report: {arguments.out}"
    console.print("\n".join([*result.complaints, summary]))
    return 1 if result.complaints else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.support.e2e", description=__doc__)
    made.add_argument("focus", help="regular expression of the names of specs")
    made.add_argument("--skip", default="", help="regular expression of names to leave out")
    made.add_argument("--runtime", type=RuntimeName, default=RuntimeName.XENPOD, choices=list(RuntimeName))
    made.add_argument("--node", action="store_true", help="specs of the suite for one node")
    made.add_argument("--nodes", type=int, default=2, help="nodes of the cluster")
    made.add_argument("--at-once", type=int, default=3, help="specs at once")
    made.add_argument("--out", type=Path, default=CACHE / "reports" / "last", help="folder of log and report")
    return made


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
