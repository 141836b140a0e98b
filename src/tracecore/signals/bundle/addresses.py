"""Names of machines by their addresses, for bundles in which some files have addresses and others have names."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from tracecore.signals.bundle.formats import FORMATS
from tracecore.signals.bundle.machines import is_name
from tracecore.signals.kubernetes import printed
from tracecore.signals.record import Attributes
from tracecore.signals.stream import Stream

#: Attributes that name a machine.
NODE: Final = ("k8s.node.name", "host.name", "tracecore.launcher.host", "tracecore.slurm.node")
#: Bytes at the beginning of a file in which a sentence may name a machine and its address.
_EARLY: Final = 16 * 1024
#: An address in brackets begins like one of these. Searching for them is cheaper than the regular expression.
_SIGNS: Final = (b" (1", b" (2", b" (ip", b" (address")
_HERE: Final = ("127.", "0.0.0.0", "255.")


def said(stream: Stream, head: bytes, name: str) -> list[tuple[str, str]]:
    """Return (address, name) of the machines for which the beginning of a file has both.

    Args:
        name: the file's name.
    """
    found: list[tuple[str, str]] = []
    if stream.format == "kubernetes_nodes":
        whole = Stream(path="", format=stream.format, layer=stream.layer, open=partial(io.BytesIO, head))
        found += printed.addresses(whole)
    elif stream.format == "kubernetes_describe" and b"InternalIP:" in head:
        found += _decoded(FORMATS.expressions["described_address"].findall(head))
    elif stream.format == "text":
        if "hosts" in name or b"/etc/hosts" in head:
            for address, names in FORMATS.expressions["hosts_row"].findall(head):
                found += [(address.decode(), one) for one in names.decode("utf-8", "replace").split()]
        early = head[:_EARLY]
        if any(word in early for word in _SIGNS):
            pairs = FORMATS.expressions["node_address"].findall(early)
            found += [(address, one) for one, address in _decoded(pairs) if is_name(one)]
    return [(address, one) for address, one in found if not address.startswith(_HERE) and one != "localhost"]


def of_pods(listed: Iterable[Attributes]) -> Iterator[tuple[str, str]]:
    """Return (address, machine) of pods, from the identities that the cluster lists."""
    for identity in listed:
        address, node = identity.get("k8s.pod.ip"), identity.get("k8s.node.name")
        if isinstance(address, str) and isinstance(node, str):
            yield address, node


def _decoded(pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[str, str]]:
    for one, other in pairs:
        yield one.decode("utf-8", "replace"), other.decode("utf-8", "replace")


def settle(streams: Iterable[Stream], told: Iterable[tuple[str, str]], known: frozenset[str]) -> None:
    """Give every stream the names of the machines by address, and replace addresses in resources by names.

    Args:
        known: names of machines that occur in files of the bundle.
    """
    streams = list(streams)
    hosts = {host for stream in streams for name in NODE[:2] if isinstance(host := stream.resource.get(name), str)}
    known |= hosts
    names: dict[str, set[str]] = {}
    for address, name in told:
        names.setdefault(address, set()).add(name)
    for host in known:
        # Clouds put the address into the name: `ip-10-0-61-9`.
        if match := FORMATS.expressions["name_by_address"].match(host.encode()):
            names.setdefault(b".".join(match.groups()).decode(), set()).add(host)
    chosen = {address: one for address, them in names.items() if (one := _one(them, known)) is not None}
    if not chosen:
        return
    for stream in streams:
        stream.nodes = chosen
        for name in NODE[:2]:
            host = stream.resource.get(name)
            if isinstance(host, str) and host in chosen:
                stream.resource[name] = chosen[host]


def _one(names: set[str], known: frozenset[str]) -> str | None:
    """Return the name that the bundle uses for a machine, else the shortest; None if the names are of several."""
    if len({name.partition(".")[0] for name in names}) > 1:
        return None
    return min(names, key=lambda name: (name not in known, len(name), name))


def name_node(attributes: Attributes, stream: Stream) -> None:
    """Replace the address of a machine in a record's attributes by its name."""
    for name in NODE:
        value = attributes.get(name)
        if isinstance(value, str) and (node := stream.nodes.get(value) or stream.nodes.get(value.partition(".")[0])):
            attributes[name] = node
    address = attributes.get("network.local.address")
    if isinstance(address, str) and address in stream.nodes and not any(name in stream.resource for name in NODE[:2]):
        attributes.setdefault("host.name", stream.nodes[address])
