"""Catalogue of NVIDIA's Xids and SXids: what they mean and what to do first.

The data is `recipes/xid.json`: codes, mnemonics and action buckets are NVIDIA's, the short names are ours. Where
another operator's catalogue recommends something else, `other_action` says what; NVIDIA's action is the one to follow.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, TypeAlias

import msgspec

Fault: TypeAlias = Literal["application", "gpu", "memory", "link", "engine", "driver", "follow_up", "none", "unused"]
Severity: TypeAlias = Literal["nonfatal", "link_fatal", "fatal"]

#: Plain words for the action buckets; a bucket without words here is one NVIDIA explains by another Xid.
ACTIONS: dict[str, str] = {
    "RESTART_APP": "restart the job; the GPU needs no reset",
    "RESET_GPU": "drain the node's jobs from this GPU and reset it",
    "DRAIN_AND_RESET": "drain the GPU, then reset it",
    "RESTART_BM": "restart the machine",
    "RESTART_VM": "restart the virtual machine",
    "RESTART_FM": "restart the fabric manager",
    "CONTACT_SUPPORT": "contact the hardware vendor's support",
    "IGNORE": "nothing to do",
    "CHECK_MECHANICALS": "check seating and power cables",
    "CHECK_UVM": "follow the Xid that the memory driver reports with it",
    "UPDATE_SWFW": "update driver and firmware",
    "WORKFLOW_XID_45": "follow the Xid before it; alone, restart the fabric manager",
    "WORKFLOW_XID_48": "reset the GPU; together with 63 or 64, drain it first",
    "WORKFLOW_NVLINK_ERR": "check the link's registers in the line; repeated on one link: field diagnostics",
    "WORKFLOW_NVLINK5_ERR": "decode unit and status of the line to find the action",
    "XID_154": "do what the line names as the new recovery action",
    "XID_154_EVAL": "do what the Xid 154 beside it names",
}

#: Xids that are usually the program's own fault: illegal instruction or access, page fault, channel reset or removed,
#: and bad commands to the GPU, whose library a program chose.
APPLICATION = frozenset({11, 13, 25, 31, 32, 43, 45, 69, 80})

_SEVERITY_ORDER: dict[Severity, int] = {"nonfatal": 0, "link_fatal": 1, "fatal": 2}
_MULTI_BIT_STATUS = range(144, 149)


class XidEntry(msgspec.Struct, frozen=True):
    """One Xid.

    Args:
        code: the number the driver prints.
        mnemonic: NVIDIA's name for it.
        name: what it says, in a few words.
        fault: whose it usually is. `application`: the program's own; `gpu`, `memory`, `link`: hardware or its
            firmware; `engine`: an engine exception that either may cause; `driver`: driver or its configuration;
            `follow_up`: speaks about another Xid; `none`: informs only; `unused`: not raised by current products.
        action: NVIDIA's bucket for what to do now; None where the catalogue has none yet.
        investigate: NVIDIA's bucket for finding out why.
        other_action: what another operator's catalogue recommends where it differs.
    """

    code: int
    mnemonic: str
    name: str
    fault: Fault
    action: str | None = None
    investigate: str | None = None
    other_action: str | None = None

    @property
    def hardware(self) -> bool:
        """The GPU, its memory, its links or their firmware failed."""
        return self.fault in ("gpu", "memory", "link")

    @property
    def advice(self) -> str:
        """The action in plain words."""
        return ACTIONS.get(self.action or "", "contact the hardware vendor's support")


class NvlinkEntry(msgspec.Struct, frozen=True):
    """One row of the decode of Xids 144–150: a unit's interrupt with one error status.

    Args:
        code: the Xid.
        unit: the unit's name before and since driver R575, separated by `/` where they differ.
        v1: mask and value of the line's first word before driver R575.
        v2: the same since R575.
        status: values of the second word; None for any.
        action: NVIDIA's bucket for what to do now.
        investigate: NVIDIA's bucket for finding out why.
        severity: whether the link or the whole GPU is lost until reset.
    """

    code: int
    unit: str
    v1: tuple[int, int]
    v2: tuple[int, int]
    status: tuple[int, ...] | None
    action: str
    investigate: str
    severity: Severity


class SxidEntry(msgspec.Struct, frozen=True):
    """One SXid (NVSwitch error); `fatal` says whether it ends the jobs on the fabric."""

    code: int
    name: str
    fatal: Literal["always", "possibly", "no"]


class _Catalog(msgspec.Struct, frozen=True):
    xids: tuple[XidEntry, ...]
    nvlink: tuple[NvlinkEntry, ...]
    sxids: tuple[SxidEntry, ...]


@cache
def _catalog() -> _Catalog:
    from importlib import resources  # slow to load, and most runs have no Xid

    data = resources.files("tracecore.recipes").joinpath("xid.json").read_bytes()
    return msgspec.json.decode(data, type=_Catalog)


@cache
def _xids() -> dict[int, XidEntry]:
    return {item.code: item for item in _catalog().xids}


@cache
def _sxids() -> dict[int, SxidEntry]:
    return {item.code: item for item in _catalog().sxids}


def entry(code: int) -> XidEntry | None:
    """The catalogue's entry for an Xid; None for a code it does not have."""
    return _xids().get(code)


def sxid_entry(code: int) -> SxidEntry | None:
    """The catalogue's entry for an SXid; None for a code it does not have."""
    return _sxids().get(code)


def nvlink_entry(code: int, unit: str, intr_info: int, error_status: int) -> NvlinkEntry | None:
    """The decode row of an Xid 144–150.

    Args:
        code: the Xid.
        unit: the unit as printed (`NETIR_LINK_EVT`).
        intr_info: the first word in the line's parentheses.
        error_status: the second word.

    Returns:
        The row; where several bits of a status word are set, the most severe of their rows; None when the
        catalogue has no row for it.
    """
    rows = [
        row
        for row in _catalog().nvlink
        if row.code == code
        and (unit in row.unit.split("/") or unit == row.unit)
        and any(intr_info & mask == value for mask, value in (row.v1, row.v2))
    ]
    exact = [row for row in rows if row.status is not None and error_status in row.status]
    if not exact and code in _MULTI_BIT_STATUS:
        exact = [row for row in rows if row.status and any(error_status & bits for bits in row.status)]
    candidates = exact or [row for row in rows if row.status is None]
    return max(candidates, key=lambda row: _SEVERITY_ORDER[row.severity], default=None)
