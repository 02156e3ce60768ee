"""What the DaemonSets of ``labeller`` and ``driver`` have in common: account, rights, bounds, kind of pod."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.objects.classes import Object, toleration
from cluster.objects.manifests.plans import DEFAULT_LABEL, TAINT
from cluster.objects.platforms import NodePlatform
from cluster.objects.policies import policy_object

NAMESPACE = "kube-system"

NODE_OF_CALLER = 'request.userInfo.?extra[?"authentication.kubernetes.io/node-name"].orValue([])'
"""CEL: a list with the name of the node that the caller's pod runs on (KEP-4193)."""

_IMPORTED = "localhost/"
_RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class NodeProgram:
    """A program of ours that runs on each node, and the common name in the program's manifests."""

    name: str
    namespace: str

    @property
    def path(self) -> str:
        """In the image of deploy/image/Containerfile."""
        return f"/opt/xenpod/bin/{self.name}"

    @property
    def labels(self) -> dict[str, str]:
        return {"app.kubernetes.io/name": self.name}

    @property
    def metadata(self) -> Object:
        """Metadata of objects that belong to a namespace."""
        return {"name": self.name, "namespace": self.namespace, "labels": self.labels}

    @property
    def service_account(self) -> Object:
        """The program's account, without any right."""
        return {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": self.metadata,
            "automountServiceAccountToken": False,
        }

    def account(self, rules: Sequence[Object]) -> list[Object]:
        """The program's service account, and the cluster role with these rules."""
        return [
            self.service_account,
            {
                "apiVersion": f"{_RBAC}/v1",
                "kind": "ClusterRole",
                "metadata": {"name": self.name},
                "rules": list(rules),
            },
            {
                "apiVersion": f"{_RBAC}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": self.name},
                "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": self.name},
                "subjects": [{"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}],
            },
        ]

    def bounds(
        self, condition: str, written: Object, may: Sequence[tuple[str, str]], **more: object
    ) -> list[Object]:
        """A ValidatingAdmissionPolicy and its binding, for rights that RBAC cannot restrict.

        ``condition``: the name of the condition that the program is the caller. ``written``: the checked
        requests. ``may``: required conditions (CEL), and the message if a condition is false. ``more``:
        further fields of the policy.
        """
        account = f"system:serviceaccount:{self.namespace}:{self.name}"
        spec: Object = {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [written]},
            "matchConditions": [
                {"name": condition, "expression": f'request.userInfo.username == "{account}"'}
            ],
            **more,
            "validations": [
                {"expression": expression, "message": message, "reason": "Forbidden"}
                for expression, message in may
            ],
        }
        binding = {"policyName": self.name, "validationActions": ["Deny"]}
        return [
            policy_object("v1", "ValidatingAdmissionPolicy", self.name, spec),
            policy_object("v1", "ValidatingAdmissionPolicyBinding", self.name, binding),
        ]

    def daemon_set(self, strategy: Object, pod: Object) -> Object:
        """``strategy``: of the rolling update."""
        return {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": self.metadata,
            "spec": {
                "selector": {"matchLabels": self.labels},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": strategy},
                "template": {"metadata": {"labels": self.labels}, "spec": pod},
            },
        }

    def pod(
        self, platforms: Sequence[NodePlatform], container: Object, mounts: Sequence[Object], *volumes: Object
    ) -> Object:
        """On every node of the platforms; as root, since the daemons' sockets are root's, with no capability.

        ``container``: its own fields, beside what all of ours have.
        """
        taints = dict.fromkeys(taint for one in platforms for taint in one.taints)
        confined = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
        }
        return {
            "serviceAccountName": self.name,
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "priorityClassName": "system-node-critical",
            "affinity": {"nodeAffinity": _affinity(platforms)},
            "tolerations": [
                {"key": TAINT, "operator": "Exists"},
                *(toleration(taint) for taint in taints),
            ],
            "securityContext": {
                "runAsUser": 0,
                "runAsGroup": 0,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{**container, "securityContext": confined, "volumeMounts": list(mounts)}],
            "volumes": list(volumes),
        }


def of_pod(name: str, path: str) -> Object:
    """A variable of the environment with a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def folder(name: str, path: str) -> Object:
    """A volume with a folder of the host: a restarted daemon makes a new socket in the folder."""
    return {"name": name, "hostPath": {"path": path, "type": "Directory"}}


def _affinity(platforms: Sequence[NodePlatform]) -> Object:
    """The nodes of all platforms, preferably the nodes for add-ons."""
    key, _, value = DEFAULT_LABEL.partition("=")
    addons = [{"key": key, "operator": "In", "values": [value]}]
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {"key": key, "operator": "In", "values": [value]}
                        for key, value in sorted(one.labels.items())
                    ]
                }
                for one in platforms
            ]
        },
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "preference": {"matchExpressions": addons}}
        ],
    }


def pull_policy(image: str) -> str:
    """The pull policy of an image: nobody pulls an image that was imported on the nodes.

    Otherwise a kubelet without the image asks the server at port 443 or 80 of the node, and runs the answer
    as root. A digest names the bytes, independent of their source.
    """
    return "Never" if image.startswith(_IMPORTED) and "@" not in image else "IfNotPresent"
