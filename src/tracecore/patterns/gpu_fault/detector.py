"""Detection of a GPU or driver that failed: lost GPU, silent firmware, memory error that was not contained."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from tracecore.facts.fact import order
from tracecore.facts.gpu import AerError, AerRecovery, GpuCondition, GpuDriverError, GpuLost, Sxid, Xid, XidGauge
from tracecore.facts.process import CudaError
from tracecore.facts.xid_catalog import ACTIONS, entry, sxid_entry
from tracecore.patterns.config import MINUTE, Duration, Settings
from tracecore.patterns.contract import NEVER, Pattern, Role, Verdict, filled
from tracecore.patterns.gpu_fault.action import (
    CONDITION,
    CUDA,
    DRIVER,
    LINK,
    MILD,
    TOOLS,
    action_of,
    code_of,
    drastic,
    ends_fabric,
    faulty,
    follows,
)
from tracecore.patterns.gpu_fault.gauge import PEERS, Gauges, gauge_keys
from tracecore.patterns.timeline import Others, Timeline, grouped, in_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Confidence, IncidentContext, Key, Window

_time = attrgetter("time")
_code = attrgetter("code")
_gpu = attrgetter("gpu")


#: Condition of a GPU that has not joined its fabric yet, and CUDA errors of programs that need the fabric.
UNREADY = "fabric_not_ready"
NEED_FABRIC = frozenset({"system_not_ready", "nvlink_uncorrectable", "device_link_failed"})


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: errors of one GPU this close to each other are one failure. A failure of a peer this close to a link
            error explains it.
    """

    window: Duration = 5 * MINUTE


class GpuFaultVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        first: the first error.
        worst: the error with the most drastic action; the same fact if there was one.
        peer: for a link, the failure at its other end, or the program's error; for PCIe, the failed recovery; for a
            program that needs the fabric, a GPU that has not joined it yet.
        named: a later report of a program that names the rank, if the first does not.
        number: the number of the GPU on its machine, by other reports of the failure.
        gauge: an exporter's gauge that shows the same Xid.
        codes: all Xids of this failure, sorted.
        reports: number of lines.
    """

    pattern_id: ClassVar[str] = "21"
    pattern_name: ClassVar[str] = "gpu_fault"
    role: ClassVar[Role] = "cause"

    first: Fact
    worst: Fact
    peer: Fact | None = None
    named: Fact | None = None
    number: str | None = None
    gauge: XidGauge | None = None
    codes: tuple[int, ...] = ()
    reports: int = 1

    @property
    def gpu(self) -> str:
        if self.bus:
            return f"GPU {self.bus}" if self.number is None else f"GPU {self.number} ({self.bus})"
        what = "GPU" if self.vendor in (None, "amd") else "accelerator"
        if device := getattr(self.first, "device", None):
            return f"{what[0].upper()}{what[1:]} {device}"
        told = self.first if self.named is None else self.named
        if told.rank is not None:
            return f"The {what} of rank {told.rank}"
        return "A GPU" if what == "GPU" else f"An {what}"

    @property
    def vendor(self) -> str | None:
        """Return the vendor; None is NVIDIA."""
        vendor = getattr(self.worst, "vendor", None)
        return vendor if vendor in TOOLS else None

    @property
    def bus(self) -> str | None:
        """Return the bus id of the GPU. The line of a PCIe port may not have it, but the recovery's line does."""
        fact = self.peer if isinstance(self.peer, AerRecovery) and self.peer.gpu else self.first
        return fact.gpu

    @property
    def lost(self) -> bool:
        gone = isinstance(self.first, GpuLost | AerError) or isinstance(self.worst, GpuLost)
        return 79 in self.codes or gone or getattr(self.first, "condition", None) == "lost"

    @property
    def node(self) -> str | None:
        """Return the node. If a program does not name it, return the node whose GPUs have not joined the fabric."""
        unready = isinstance(self.peer, GpuCondition)
        return self.first.node or (self.peer.node if self.peer is not None and unready else None)

    def beside(self, rest: IncidentContext) -> GpuFaultVerdict:
        return msgspec.structs.replace(self, number=rest.numbers[0]) if len(rest.numbers) == 1 else self

    def headline(self) -> str:
        on = f" on {self.node}" if self.node else ""
        xids = f" (Xid {', '.join(map(str, self.codes))})" if self.codes else ""
        fact = self.first
        if isinstance(fact, Sxid):
            known_switch = sxid_entry(fact.code)
            link = f" on link {fact.link}" if fact.link is not None else ""
            why = f": {known_switch.name}" if known_switch else ""
            return f"NVSwitch{f' {fact.switch}' if fact.switch else ''}{on} failed{link}{why} (SXid {fact.code})"
        if isinstance(fact, AerError):
            what = "is lost: it did not come back after a fatal PCIe error"
        elif isinstance(fact, GpuCondition):
            what = CONDITION.get(fact.condition, "failed")
        elif self.lost:
            what = "has fallen off the bus"
        elif isinstance(fact, GpuDriverError):
            what = DRIVER.get(fact.error, "failed")
        elif isinstance(fact, CudaError):
            what = f"reports {CUDA.get(fact.error, 'an error')}"
        elif isinstance(fact, Xid) and fact.code == 154:
            what = f"asks for recovery: {fact.recovery}"
        else:
            known = entry(code_of(fact)) if isinstance(fact, Xid) else None
            what = f"failed: {known.name}" if known else "failed"
        return f"{self.gpu}{on} {what}{xids}"

    def remediation(self) -> str:
        node, gpu = self.node or "NODE", self.bus or "GPU"
        there = self.node or "its machine"
        if isinstance(self.first, Sxid) or (
            isinstance(self.first, GpuDriverError) and self.first.error == "fabric_abort"
        ):
            return (
                f"A fatal fabric error ends every job whose GPUs use the fabric; their later errors are consequences. "
                f"Keep new work off {there} (`kubectl cordon {node}` or `scontrol update nodename={node} "
                f"state=drain`). "
                f"When its jobs are gone, reset GPUs and switches together (`systemctl stop nvidia-fabricmanager; "
                f"nvidia-smi --gpu-reset; systemctl start nvidia-fabricmanager`, or restart the machine) and look at "
                f"`/var/log/fabricmanager.log`; if it fails again, send the vendor what `nvidia-bug-report.sh` writes."
            )
        if isinstance(self.first, CudaError) and self.first.error == "system_not_ready":
            return (
                f"CUDA waits for a daemon of the driver on {there}: look at `systemctl status nvidia-fabricmanager` "
                f"and `nvidia-smi -q | grep -A3 Fabric`. The fabric manager needs the same version as the driver: "
                f"install that version, `systemctl restart nvidia-fabricmanager`, and keep work off the node until "
                f"then (`kubectl cordon {node}` or `scontrol update nodename={node} state=drain`)."
            )
        action = action_of(self.worst)
        show, reset, test, words = (command.replace("{gpu}", gpu) for command in TOOLS[self.vendor])
        look = f"Look at `{show}` and `dmesg -T | grep -i -E '{words}'` on {there}. "
        first = ""
        if isinstance(self.worst, Xid):
            act = ACTIONS.get(action or "", "not known yet")
            first = f"NVIDIA's first action for Xid {code_of(self.worst)}: {act}. "
        if action in MILD:
            return (
                f"{first}{look}Take {there} out of service only if it fails again; restart the job from its checkpoint."
            )
        hold = f"Keep new work off it: `kubectl cordon {node}` or `scontrol update nodename={node} state=drain`. "
        if self.lost:
            command = (
                f"A GPU off the bus stays away until the machine restarts: `sudo reboot` on {there} once it is empty. "
            )
        elif action in ("RESTART_BM", "RESTART_VM"):
            command = f"Restart it once it is empty: `sudo reboot` on {there}. "
        elif action == "CONTACT_SUPPORT" or action is None:
            command = f"Run `nvidia-bug-report.sh` on {there} and send it to the vendor. "
        else:
            command = f"When its jobs are gone, {reset} on {there}. "
        return f"{hold}{first}{command}{look}Then `{test}` before it takes work; restart the job elsewhere."

    def evidence(self) -> Sequence[Fact]:
        facts = [self.first]
        if self.worst is not self.first:
            facts.append(self.worst)
        if self.peer is not None:
            facts.append(self.peer)
        if self.named is not None and self.named is not self.worst:
            facts.append(self.named)
        if self.gauge is not None:
            facts.append(self.gauge)
        return sorted(facts, key=order)

    def missing_layers(self) -> tuple[str, ...]:
        return ("kernel",) if self.confidence == "partial" else ()

    def fields(self) -> dict[str, Any]:
        fields = {
            "xids": list(self.codes),
            "reports": self.reports,
            "lost": self.lost,
            "gpu.id": self.bus,
            "kernelevents.gpu.device": getattr(self.first, "device", None),
            "kernelevents.sxid": self.first.code if isinstance(self.first, Sxid) else None,
            "k8s.node.name": self.node,
            "action": action_of(self.worst),
            "gen_ai.training.rank": self.first.rank if self.named is None else self.named.rank,
            "peer": None if isinstance(self.peer, AerRecovery | GpuCondition | None) else self.peer.gpu,
        }
        return filled(fields)

    def promoted(self) -> dict[str, Any]:
        code = code_of(self.first) if isinstance(self.first, Xid) else None
        return {
            "gpu.id": self.bus,
            "k8s.node.name": self.node,
            "kernelevents.xid": code,
            "tracecore.alert.gpu_fault.action": action_of(self.worst),
        }


class GpuFault(Pattern[Config]):
    """An Xid that NVIDIA's catalogue attributes to the GPU, its memory, links or driver; or a GPU off the bus.

    A fatal error of a switch, and a fabric manager that aborted jobs, count alone, because every GPU behind them is
    lost to its job. An error of a link counts with a failure at its other end or of the program that used it. Xids
    caused by a program, or by another Xid, never count. A condition counts only if the GPU is gone or must be replaced.
    A fatal PCIe error counts if a GPU did not recover from it.
    """

    id = "21"
    name = "gpu_fault"
    role = "cause"
    maturity = "experimental"
    needs = (Xid, GpuLost, GpuDriverError, GpuCondition, Sxid, CudaError, XidGauge, AerError, AerRecovery)
    triggers = (Xid, GpuLost, GpuDriverError, GpuCondition, Sxid, CudaError, AerRecovery)
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        # Facts without a node are never joined with facts that name one: they are of an unknown machine.
        node = fact.node or ""
        if type(fact) is XidGauge:
            return gauge_keys(fact)
        if type(fact) is CudaError:
            return ((node, PEERS),) if fact.error in CUDA else ()
        if type(fact) is GpuCondition and fact.condition == UNREADY:
            # Programs that wait for a fabric often do not name their node.
            return ((node, PEERS), ("", PEERS)) if node else ((node, PEERS),)
        if isinstance(fact, AerError | AerRecovery):
            broken = fact.severity == "fatal" if isinstance(fact, AerError) else not fact.succeeded
            return ((node, PEERS),) if broken else ()
        if type(fact) is Sxid or (type(fact) is Xid and fact.code == LINK):
            return ((node, PEERS),)
        if not faulty(fact):
            return ()
        own = (node, fact.gpu or "")
        return (own, (node, PEERS)) if isinstance(fact, Xid | GpuLost) else (own,)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        gauges = Gauges(window.of(XidGauge))
        if window.key[1] == PEERS:
            found = self._links(window, gauges)
            found += self._switches(window, gauges, found)
            if window.of(CudaError):
                found += self._programs(window, gauges)
            if window.of(AerRecovery):
                found += self._pcie(window, gauges)
            if len(found) > 1:
                # Uids cost time to build, so build them only if two times are equal.
                found.sort(key=_time if len(set(map(_time, found))) == len(found) else _order)
            return [*found]
        kernel = in_order(window.of(Xid), window.of(GpuLost), window.of(GpuDriverError), window.of(GpuCondition))
        # An Xid that names its cause counts only if the log does not have the cause.
        if any(map(follows, kernel)):
            kernel = [fact for fact in kernel if not follows(fact)] or kernel
        return [self._verdict(window, gauges, chain) for chain in _chains(kernel, self.config.window)]

    def _programs(self, window: Window, gauges: Gauges) -> list[GpuFaultVerdict]:
        """Return verdicts from CUDA errors, if no kernel log says more."""
        kernel = Timeline(in_order(window.of(Xid), window.of(GpuLost)))
        near = self.config.window
        unready = _of_one_node(window.of(GpuCondition))
        return [
            self._verdict(window, gauges, chain, "partial", unready if _needs_fabric(chain[0]) else None)
            for chain in _chains(window.of(CudaError), near)
            if kernel.first(chain[0].time - near, chain[0].end + near) is None
        ]

    def _pcie(self, window: Window, gauges: Gauges) -> list[GpuFaultVerdict]:
        """Return verdicts on GPUs that did not recover from a fatal PCIe error, if no Xid reports the same."""
        kernel = Timeline(in_order(window.of(Xid), window.of(GpuLost)))
        near = self.config.window
        found: dict[str, GpuFaultVerdict] = {}
        for error in window.of(AerError):
            failed = [r for r in window.of(AerRecovery) if abs(r.time - error.time) <= near and _of_one(error, r)]
            # The line of the GPU's own driver says more than the port's.
            failed.sort(key=lambda recovery: recovery.gpu is None)
            if failed and kernel.first(error.time - near, error.end + near) is None:
                verdict = self._verdict(window, gauges, [error], "full", failed[0])
                found.setdefault(verdict.bus or "", verdict)
        return list(found.values())

    def _switches(self, window: Window, gauges: Gauges, links: Sequence[GpuFaultVerdict]) -> list[GpuFaultVerdict]:
        """Return verdicts on fatal errors of switches, if no link of a GPU reports the same."""
        fatal = [sxid for sxid in window.of(Sxid) if ends_fabric(sxid)]
        judged = Timeline(sorted((link.first for link in links), key=_time))
        near = self.config.window
        return [
            self._verdict(window, gauges, chain)
            for chain in _chains(fatal, near)
            if judged.first(chain[0].time - near, chain[0].end + near) is None
        ]

    def _links(self, window: Window, gauges: Gauges) -> list[GpuFaultVerdict]:
        """Return verdicts on errors of links that another GPU, a switch or the program that used the link confirms."""
        links = window.grouped(Xid, _code).get(LINK, ())
        if not links:
            return []
        programs = [error for error in window.of(CudaError) if error.error == "nvlink_uncorrectable"]
        others = Others(in_order(window.of(Xid), window.of(GpuLost), window.of(Sxid), programs), _gpu)
        near = self.config.window
        found: list[GpuFaultVerdict] = []
        gpus = grouped(links, _gpu)
        for gpu in sorted(gpus, key=lambda gpu: gpu or ""):
            for chain in _chains(gpus[gpu], near):
                peer = others.first(gpu, chain[0].time - near, chain[0].end + near)
                if peer is not None:
                    found.append(self._verdict(window, gauges, chain, "full", peer))
        return found

    def _verdict(
        self,
        window: Window,
        gauges: Gauges,
        chain: Sequence[Fact],
        confidence: Confidence = "full",
        peer: Fact | None = None,
    ) -> GpuFaultVerdict:
        first = worst = chain[0]
        latest, most = first.end + self.config.window, drastic(first)
        codes: set[int] = set()
        reports = 0
        for fact in chain:
            if fact.time > latest:
                break
            reports += fact.count if fact.count > 0 else 1
            if isinstance(fact, Xid):
                codes.add(code_of(fact))
            much = drastic(fact)
            # Take the most drastic; of several the earliest.
            if much > most or (much == most and fact.time == worst.time and fact.uid > worst.uid):
                worst, most = fact, much
        shown = tuple(sorted(codes))
        return GpuFaultVerdict(
            key=window.key,
            episode=first.source,
            time=first.time,
            confidence=confidence,
            first=first,
            worst=worst,
            peer=peer,
            named=_named(chain) if isinstance(first, CudaError) else None,
            gauge=gauges.near(first, shown, self.config.window) if gauges else None,
            codes=shown,
            reports=reports,
        )


def _named(chain: Sequence[Fact]) -> Fact | None:
    """Return the report that names the rank, if the first report does not and the others name only one rank."""
    if chain[0].rank is not None:
        return None
    named = [fact for fact in chain if fact.rank is not None]
    return named[0] if len({fact.rank for fact in named}) == 1 else None


def _needs_fabric(error: Fact) -> bool:
    return isinstance(error, CudaError) and error.error in NEED_FABRIC


def _of_one_node(conditions: Sequence[GpuCondition]) -> GpuCondition | None:
    """Return the first GPU that has not joined its fabric, if all such GPUs are on one node."""
    unready = [fact for fact in conditions if fact.condition == UNREADY]
    return unready[0] if len({fact.node for fact in unready}) == 1 else None


def _of_one(error: AerError, recovery: AerRecovery) -> bool:
    """Return whether both may be about one device, and one is from the driver of a GPU, which names the PCIe layer."""
    if recovery.gpu is not None:
        return error.gpu in (recovery.gpu, None)
    return error.gpu is not None and error.error_type is not None


def _order(verdict: GpuFaultVerdict) -> tuple[int, str]:
    return verdict.time, verdict.first.uid


def _chains(facts: Sequence[Fact], gap: int) -> list[list[Fact]]:
    """Split facts into runs in which each fact begins at most `gap` after an earlier one ended."""
    found: list[list[Fact]] = []
    until = NEVER
    for fact in facts:
        end = fact.end + gap
        if fact.time > until:
            found.append([fact])
            until = end
        else:
            found[-1].append(fact)
            until = end if end > until else until
    return found
