"""Converters of network addresses."""

from __future__ import annotations

import base64
import hashlib
import ipaddress

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlRuntimeError
from tracecore.ottl.signature import Getter, Int, String, StringGetter, converter, prepared, value_converter

_PROTOCOLS = {"ICMP": 1, "TCP": 6, "UDP": 17, "RSVP": 46, "ICMP6": 58, "SCTP": 132}


def parse_ip(text: str) -> bytes | None:
    """The bytes of an address, four for IPv4 also when it is written inside IPv6; None where it is none."""
    if "%" in text:
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.packed
    return address.packed


@value_converter("CommunityID")
def community_id(
    source_ip: String,
    source_port: Int,
    destination_ip: String,
    destination_port: Int,
    protocol: String = "TCP",
    seed: Int = 0,
) -> str:
    """The Community ID (version 1) of a network flow, the same for both of its directions."""
    source = _end(source_ip, source_port, "source")
    destination = _end(destination_ip, destination_port, "destination")
    if protocol not in _PROTOCOLS:
        raise OttlRuntimeError(f"unsupported protocol: {protocol}")
    if not 0 <= seed <= 65535:
        raise OttlRuntimeError(f"seed must be between 0 and 65535, got {seed}")
    # The shorter, then the smaller address comes first; of one address, the smaller port.
    first, second = sorted((source, destination), key=lambda side: (len(side[0]), side))
    flow = seed.to_bytes(2, "big") + first[0] + second[0] + bytes((_PROTOCOLS[protocol], 0))
    flow += first[1].to_bytes(2, "big") + second[1].to_bytes(2, "big")
    digest = hashlib.sha1(flow, usedforsecurity=False).digest()
    return "1:" + base64.b64encode(digest).decode()


def _end(ip: str, port: int, name: str) -> tuple[bytes, int]:
    """The address and port of one end of a flow."""
    if not 0 <= port <= 65535:
        raise OttlRuntimeError(f"{name} port must be between 0 and 65535, got {port}")
    address = parse_ip(ip)
    if address is None:
        raise OttlRuntimeError(f"invalid {name} IP: {ip}")
    return address, port


@converter("IsInCIDR")
def is_in_cidr(target: StringGetter, networks: list[StringGetter]) -> Getter:
    """Whether an address lies in one of the networks. What is no address lies in none."""
    known = [prepared(network, _network) for network in networks]

    def run(ctx: Context) -> bool:
        address = parse_ip(target(ctx))
        return address is not None and any(_contains(network(ctx), address) for network in known)

    return run


def _network(text: str) -> tuple[int, int, int]:
    """(bytes of an address, its number with the host part cleared, bits of the host part)."""
    head, slash, tail = text.partition("/")
    address = None if "%" in head or not slash else parse_ip(head)
    if address is None or not tail.isascii() or not tail.isdigit() or len(tail) > 3:
        raise OttlRuntimeError(f"invalid CIDR address: {text}")
    written = 16 if ":" in head else 4
    prefix = int(tail)
    if prefix > 8 * written:
        raise OttlRuntimeError(f"invalid CIDR address: {text}")
    if written == 16 and len(address) == 4:
        # IPv4 inside IPv6: with a prefix that covers the embedding it is an IPv4 network.
        if prefix < 96:
            address = b"\x00" * 10 + b"\xff\xff" + address
        else:
            prefix -= 96
    host = 8 * len(address) - prefix
    return len(address), int.from_bytes(address, "big") >> host, host


def _contains(network: tuple[int, int, int], address: bytes) -> bool:
    size, number, host = network
    return len(address) == size and int.from_bytes(address, "big") >> host == number
