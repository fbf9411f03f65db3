"""Decide which connections NetworkPolicies allow, by the rules of networking.k8s.io/v1."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Pod:
    """A source or target of a connection; its namespace has only the label that Kubernetes sets, its name."""

    labels: Mapping[str, str]
    namespace: str = "dagster"
    address: str = field(default="", kw_only=True)
    """Only for peers outside of the cluster."""


def is_selected(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a label selector matches these labels; an empty selector matches all."""
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for rule in selector.get("matchExpressions") or ():
        there, among = rule["key"] in labels, labels.get(rule["key"]) in rule.get("values", ())
        fits = {"In": among, "NotIn": not among, "Exists": there, "DoesNotExist": not there}[rule["operator"]]
        if not fits:
            return False
    return True


def is_allowed(policies: Iterable[Mapping[str, Any]], source: Pod, target: Pod, port: int) -> bool:
    """Return whether a connection is allowed: no policy selects the target, or one that does allows the source.

    Args:
        policies: All policies of the target's namespace.
        source: A pod, or an address outside.
        target: A pod.
        port: A TCP port.
    """
    ruling = [
        policy["spec"]
        for policy in policies
        if "Ingress" in policy["spec"]["policyTypes"] and is_selected(policy["spec"]["podSelector"], target.labels)
    ]
    return not ruling or any(
        _allows(rule, source, target.namespace, port) for spec in ruling for rule in spec.get("ingress") or ()
    )


def _allows(rule: Mapping[str, Any], source: Pod, namespace: str, port: int) -> bool:
    ports = [entry["port"] for entry in rule.get("ports") or ()]
    return (not ports or port in ports) and (
        "from" not in rule or any(_is_peer(peer, source, namespace) for peer in rule["from"])
    )


def _is_peer(peer: Mapping[str, Any], source: Pod, namespace: str) -> bool:
    from ipaddress import ip_address, ip_network

    if "ipBlock" in peer:
        return bool(source.address) and ip_address(source.address) in ip_network(peer["ipBlock"]["cidr"])
    if source.address:
        return False
    if "namespaceSelector" in peer:
        named = {"kubernetes.io/metadata.name": source.namespace}
        if not is_selected(peer["namespaceSelector"], named):
            return False
    elif source.namespace != namespace:
        return False
    return is_selected(peer.get("podSelector", {}), source.labels)
