"""Catalogue of NVIDIA's Xids and SXids: their meaning and the first action.

The data is in `recipes/xid.json`. Codes, mnemonics and actions are NVIDIA's; the short names are ours. `other_action`
has the action of another operator's catalogue if it differs. Follow NVIDIA's action.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, TypeAlias

import msgspec

Fault: TypeAlias = Literal["application", "gpu", "memory", "link", "engine", "driver", "follow_up", "none", "unused"]
Severity: TypeAlias = Literal["nonfatal", "link_fatal", "fatal"]

#: Plain words for NVIDIA's actions. NVIDIA explains actions without words here by another Xid.
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
#: and bad commands to the GPU from a library that the program uses.
APPLICATION = frozenset({11, 13, 25, 31, 32, 43, 45, 69, 80})

_SEVERITY_ORDER: dict[Severity, int] = {"nonfatal": 0, "link_fatal": 1, "fatal": 2}
_MULTI_BIT_STATUS = range(144, 149)


class XidEntry(msgspec.Struct, frozen=True):
    """One Xid.

    Args:
        code: the number that the driver prints.
        mnemonic: NVIDIA's name for it.
        name: its meaning in a few words.
        fault: the usual cause. `application`: the program; `gpu`, `memory`, `link`: hardware or its firmware;
            `engine`: an engine exception, caused by either; `driver`: driver or its configuration; `follow_up`: about
            another Xid; `none`: information only; `unused`: not raised by current products.
        action: NVIDIA's immediate action; None if the catalogue has none yet.
        investigate: NVIDIA's action to find the reason.
        other_action: the action of another operator's catalogue, if it differs.
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
        """Return whether the GPU, its memory, its links or their firmware failed."""
        return self.fault in ("gpu", "memory", "link")

    @property
    def advice(self) -> str:
        """Return the action in plain words."""
        return ACTIONS.get(self.action or "", "contact the hardware vendor's support")


class NvlinkEntry(msgspec.Struct, frozen=True):
    """One row of the table that decodes Xids 144–150: an interrupt of a unit with one error status.

    Args:
        code: the Xid.
        unit: the name of the unit before and since driver R575, separated by `/` if they differ.
        v1: mask and value of the first word of the line before driver R575.
        v2: the same since R575.
        status: values of the second word; None for any.
        action: NVIDIA's immediate action.
        investigate: NVIDIA's action to find the reason.
        severity: the link (`link_fatal`) or the whole GPU (`fatal`) is lost until reset.
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
    """One SXid (an NVSwitch error); `fatal` says whether it ends the jobs on the fabric."""

    code: int
    name: str
    fatal: Literal["always", "possibly", "no"]


class _Catalog(msgspec.Struct, frozen=True):
    xids: tuple[XidEntry, ...]
    nvlink: tuple[NvlinkEntry, ...]
    sxids: tuple[SxidEntry, ...]


@cache
def _catalog() -> _Catalog:
    from importlib import resources  # slow to import, and most runs have no Xid

    data = resources.files("tracecore.recipes").joinpath("xid.json").read_bytes()
    return msgspec.json.decode(data, type=_Catalog)


@cache
def _xids() -> dict[int, XidEntry]:
    return {item.code: item for item in _catalog().xids}


@cache
def _sxids() -> dict[int, SxidEntry]:
    return {item.code: item for item in _catalog().sxids}


def entry(code: int) -> XidEntry | None:
    """Return the entry for an Xid; None for an unknown code."""
    return _xids().get(code)


def sxid_entry(code: int) -> SxidEntry | None:
    """Return the entry for an SXid; None for an unknown code."""
    return _sxids().get(code)


def nvlink_entry(code: int, unit: str, intr_info: int, error_status: int) -> NvlinkEntry | None:
    """Return the row that decodes an Xid 144–150.

    If several bits of a status word are set, return the most severe of their rows. Return None if there is no row.

    Args:
        code: the Xid.
        unit: the unit as printed (`NETIR_LINK_EVT`).
        intr_info: the first word in the parentheses of the line.
        error_status: the second word.
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
