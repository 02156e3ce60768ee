"""``protect generate``: makes the objects and flags that a cluster needs for nodes with zones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from cluster.objects import nodes, output, platforms, policies, syntax
from cluster.objects.claims import templates
from cluster.objects.output import GenerateOptions
from cluster.objects.platforms import NodePlatform
from cluster.objects.versions import version
from daemonkit.faults import Fault
from daemonkit.rpc.channels import channel
from protectctl import show
from protectctl.cluster import manifests
from protectctl.command_errors import Command, CommandFailed
from protectctl.usage.verbs import CRI_SOCKET, named
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.cri.v1 import runtime_pb2_grpc

_TIMEOUT_SECONDS = 60.0
_APPLIED = (".json", ".yaml", ".yml")
"""What ``kubectl apply --filename DIR`` takes."""
_DEFAULTS = GenerateOptions()
_WHAT = (
    "classes: RuntimeClasses. assign-class: the policy that gives pods of labelled namespaces a class. "
    "keep-off-host: the policy that keeps pods with zones off the host. keep-off-delegate: the policy that "
    "keeps pods out of a node's other runtime unless [delegate] namespaces has their namespace. "
    "labeller: the DaemonSet that labels nodes with what they can do. "
    "driver: the DaemonSet that has the scheduler know of zone memory, "
    "and the class of it. claims: the policy that claims it for pods. claim-templates: what that policy "
    "chooses from, in each namespace. granules: the policy that has pods ask for granules of zone memory, "
    "for clusters without claims; with it, driver is the DaemonSet that counts them. "
    "labels: kubectl commands for labels and taints of nodes. kubelet-flags: the same, as its flags. "
    "cluster-api, cloud-init: the same for new nodes. "
    "chart-values: values of the Helm chart. "
    f"Default: {' '.join(output.FOR_CLUSTER)}"
)

T = TypeVar("T")


def add_arguments(noun: argparse.ArgumentParser) -> None:
    """Add the arguments: where the facts come from, what to make, where to write it."""
    named(noun, "generate").add_argument("what", nargs="*", metavar="WHAT", type=_what, help=_WHAT)
    source = noun.add_argument_group("the nodes").add_mutually_exclusive_group()
    text = "ask xenpod-cri at this socket for this node's handlers (default)"
    source.add_argument("--cri-socket", type=Path, default=CRI_SOCKET, metavar="PATH", help=text)
    source.add_argument("--config", type=Path, metavar="PATH", help="read a cri.toml instead")
    source.add_argument(
        "--platforms", type=Path, metavar="FILE", help="read several platforms from a file instead"
    )
    noun.add_argument("--platform", metavar="NAME", help="use only this platform of FILE")
    text = "instead of what the nodes say of this resource: memory=96Mi, cpu=100m; may be repeated"
    noun.add_argument("--overhead", action="append", type=_overhead, metavar="RESOURCE=QUANTITY", help=text)
    text = f"label of the nodes; may be repeated; default: {platforms.ZONES_LABEL}=true"
    noun.add_argument("--label", action="append", type=_typed(syntax.label), metavar="KEY=VALUE", help=text)
    text = f"taint of the nodes; may be repeated; default: {' '.join(platforms.DEFAULT_TAINTS)}"
    noun.add_argument("--taint", action="append", metavar="KEY[=VALUE]:EFFECT", help=text)
    noun.add_argument(
        "--no-taint", action="store_true", help="no taints, so that other pods run on the nodes too"
    )
    _releases(noun)
    text = "name of a node in the commands of labels; may be repeated"
    node = _text(syntax.dns_subdomain)
    noun.add_argument("--node", action="append", type=node, default=[], metavar="NAME", help=text)
    text = "image of the labeller and the driver, with its registry and tag"
    noun.add_argument(
        "--image", type=_text(syntax.check_image), default=_DEFAULTS.image, metavar="NAME", help=text
    )
    text = "namespace of the labeller and the driver"
    name = _text(syntax.dns_label)
    noun.add_argument("--namespace", type=name, default=_DEFAULTS.namespace, metavar="NAME", help=text)
    _claims(noun)
    noun.add_argument("--output", choices=("yaml", "json"), default="yaml", help="format of objects")
    text = "write a file for each kind of object into this folder"
    noun.add_argument("--to", type=Path, metavar="DIR", help=text)
    manifests.add_arguments(noun)


def _releases(verb: argparse.ArgumentParser) -> None:
    kubernetes, known = _DEFAULTS.kubernetes, _typed(version)
    text = f"release of the cluster; default: {kubernetes}"
    verb.add_argument("--kubernetes", type=known, default=kubernetes, metavar="1.NN", help=text)
    text = "assign classes by Kyverno of this release, 1.17 or later, instead of the API server's own policy"
    verb.add_argument("--kyverno", type=known, metavar="1.NN", help=text)
    text = "version of Cluster API's objects"
    verb.add_argument("--cluster-api", choices=nodes.CLUSTER_API, default=nodes.CLUSTER_API[0], help=text)


def _claims(verb: argparse.ArgumentParser) -> None:
    text = "size of a template of claims, such as 512Mi; may be repeated; default: 128Mi to 64Gi"
    verb.add_argument("--claim-size", action="append", type=_mebibytes, metavar="SIZE", help=text)
    text = "namespace of claim-templates; may be repeated; default: default"
    name = _text(syntax.dns_label)
    verb.add_argument("--claim-namespace", action="append", type=name, metavar="NAME", help=text)
    text = f"size of a granule; default: {_DEFAULTS.granule}Mi"
    verb.add_argument("--granule", type=_mebibytes, default=_DEFAULTS.granule, metavar="SIZE", help=text)


async def generate(options: argparse.Namespace) -> None:
    """Make what the command line asks for, or change manifests.

    CommandFailed names the file and the key that are wrong; AioRpcError: xenpod-cri does not answer.
    """
    wanted = GenerateOptions(
        what=options.what or output.FOR_CLUSTER,
        kubernetes=options.kubernetes,
        kyverno=options.kyverno,
        cluster_api=options.cluster_api,
        nodes=options.node,
        image=options.image,
        namespace=options.namespace,
        claim_sizes=_sizes(options),
        claim_namespaces=options.claim_namespace or _DEFAULTS.claim_namespaces,
        granule=options.granule,
    )
    _check_usage(options, wanted.what)
    changing = manifests.check_usage(options)
    try:
        if changing:
            return manifests.change(options, [] if options.critical else await _platforms(options))
        found = [_changed(one, options) for one in await _platforms(options)]
        if wanted.nodes and len(found) > 1:
            options.refuse("--node has the labels of one platform: name it with --platform")
        objects, texts = output.objects(found, wanted), output.texts(found, wanted)
    except Fault as fault:
        raise CommandFailed(str(fault)) from None
    if options.to:
        _write(options.to, output.files_by_kind(objects, options.output) | texts)
    elif len(texts) > 1 and "cloud-init" in wanted.what:
        options.refuse("each platform has its own user data: name one with --platform, or use --to")
    elif texts:
        sys.stdout.write("".join(_titled(texts) if len(texts) > 1 else texts.values()))
    else:
        sys.stdout.write(output.stream(objects, options.output))
    _warn(wanted)


def _sizes(options: argparse.Namespace) -> Sequence[int]:
    try:
        return templates.sizes(options.claim_size or _DEFAULTS.claim_sizes)
    except ValueError as error:
        options.refuse(f"argument --claim-size: {error}")
        raise


def _check_usage(options: argparse.Namespace, what: Sequence[str]) -> None:
    """End with status 2 if arguments contradict each other."""
    if options.platforms and (options.label or options.taint or options.no_taint):
        options.refuse("--label, --taint and --no-taint are for one node: FILE says what each platform has")
    if options.platform and not options.platforms:
        options.refuse("--platform chooses one of --platforms FILE")
    if options.taint and options.no_taint:
        options.refuse("--taint and --no-taint contradict each other")
    if "granules" in what and not {"claims", "claim-templates"}.isdisjoint(what):
        options.refuse("granules are for clusters without claims: make one of them")
    kinds = {one if one in output.FOR_NODES else "objects" for one in what}
    if len(kinds) > 1 and not options.to:
        options.refuse(f"{' and '.join(sorted(kinds))} cannot share standard output: use --to")
    if options.output == "json" and kinds != {"objects"}:
        options.refuse(f"{' and '.join(sorted(kinds - {'objects'}))} cannot be JSON")


async def _platforms(options: argparse.Namespace) -> Sequence[NodePlatform]:
    if options.platforms:
        found = platforms.of_file(options.platforms)
        chosen = [one for one in found if options.platform in (None, one.name)]
        if not chosen:
            known = ", ".join(one.name for one in found)
            raise CommandFailed(f"{options.platforms} has no platform {options.platform}; there are: {known}")
        return chosen
    if options.config:
        return [platforms.of_config(options.config)]
    async with channel(options.cri_socket) as link:
        runtime = runtime_pb2_grpc.RuntimeServiceStub(link)
        answer = await runtime.Status(cri.StatusRequest(verbose=True), timeout=_TIMEOUT_SECONDS)
    found_one, unusable = platforms.of_status(answer.info)
    for name, cause in unusable.items():
        show.note(f"handler {name} is left out: {cause}")
    return [found_one]


def _changed(platform: NodePlatform, options: argparse.Namespace) -> NodePlatform:
    """The platform with what the command line overrides."""
    if options.overhead:
        said = dict(options.overhead)
        overheads = {name: {**measured, **said} for name, measured in platform.overheads.items()}
        platform = replace(platform, overhead={**platform.overhead, **said}, overheads=overheads)
    if options.label:
        platform = replace(platform, labels=dict(options.label))
    if options.taint or options.no_taint:
        try:
            platform = replace(platform, taints=syntax.taints(options.taint or ()))
        except ValueError as error:
            options.refuse(f"argument --taint: {error}")
    return platform


def _write(folder: Path, files: Mapping[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
            sys.stdout.write(f"{folder / name}\n")
        others = {path.name for path in folder.iterdir() if path.suffix in _APPLIED} - files.keys()
    except OSError as error:
        raise CommandFailed(f"write {error.filename or folder}: {error.strerror or error}") from None
    if others:
        show.note(
            f"{folder} has other files, which kubectl would apply with these: {', '.join(sorted(others))}"
        )


def _titled(texts: Mapping[str, str]) -> list[str]:
    return [f"# {Path(name).stem}\n{text}" for name, text in texts.items()]


def _warn(wanted: GenerateOptions) -> None:
    if "assign-class" in wanted.what and not wanted.kyverno:
        if flags := policies.switches(wanted.kubernetes):
            show.note(f"Kubernetes {wanted.kubernetes} needs flags of its API server for the policy: {flags}")


def _typed(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A function for ``type=`` of an argument: its ValueError becomes argparse's error message."""

    def checked(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


@_typed
def _what(text: str) -> str:
    if text not in output.WHAT:
        raise ValueError(f"{text!r:.80} is not one of {', '.join(output.WHAT)}")
    return text


def _text(check: Callable[[str], None]) -> Callable[[str], str]:
    """A function for ``type=`` of an argument that is kept as it is if it passes the check."""

    def checked(text: str) -> str:
        check(text)
        return text

    return _typed(checked)


@_typed
def _mebibytes(text: str) -> int:
    whole, rest = divmod(syntax.quantity(text), 1 << 20)
    if rest or whole < 1:
        raise ValueError(f"{text!r:.80} is not a whole number of Mi")
    return int(whole)


@_typed
def _overhead(text: str) -> tuple[str, str]:
    resource, _, amount = text.partition("=")
    syntax.overhead({resource: amount})
    return resource, amount


COMMANDS: Mapping[str, Command] = {"generate": generate}
