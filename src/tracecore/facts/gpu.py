"""Facts from the kernel and from metrics about a GPU, its memory and its links."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tracecore.facts.fact import Fact
from tracecore.facts.wording import place, seconds, sentence, size

THERMAL = frozenset({"thermal_hardware", "thermal_software"})


class Xid(Fact, frozen=True, kw_only=True):
    """The NVIDIA driver reported an Xid.

    Args:
        code: the Xid.
        process: the process that the driver names.
        pid: its pid.
        cause: the Xid that caused a 45, if the line names it.
        link: NVLink number of a 74 or 144 to 150.
        detail: the message after the code.
        unit: the unit that an NVLink error of 144 to 150 names.
        fatal: such an error says that it is fatal.
        intr_info: the first word of such an error.
        error_status: the second word of such an error.
        recovery: the new recovery action of a 154.
    """

    kind: ClassVar[str] = "kernel_event"
    layer: ClassVar[str] = "kernel"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"detail"})

    code: int
    process: str | None = None
    pid: int | None = None
    cause: int | None = None
    link: int | None = None
    detail: str | None = None
    unit: str | None = None
    fatal: bool | None = None
    intr_info: int | None = None
    error_status: int | None = None
    recovery: str | None = None

    def describe(self) -> str:
        who = f" by process {self.process or 'pid'}{f' {self.pid}' if self.pid is not None else ''}"
        after = f", following Xid {self.cause}" if self.cause is not None else ""
        link = f" on NVLink {self.link}" if self.link is not None else ""
        named = who if self.process is not None or self.pid is not None else ""
        return sentence(self, f"Xid {self.code}{link}{named}{after}", self.detail)


class XidGauge(Fact, frozen=True, kw_only=True):
    """An exporter's gauge shows the last Xid of a GPU, at whatever time that was. It is not an event."""

    kind: ClassVar[str] = "xid_gauge"
    layer: ClassVar[str] = "metrics"

    code: int

    def describe(self) -> str:
        return sentence(self, f"the exporter's gauge shows Xid {self.code} as the last")


class GpuCondition(Fact, frozen=True, kw_only=True):
    """A gauge or a table shows a condition of a GPU, or of the rank that uses it. It is not an event.

    Args:
        condition: a value of `hw.gpu.condition`.
        index: the index of the GPU on its node, if its bus id is not known.
        detail: the links or the state.
    """

    kind: ClassVar[str] = "gpu_condition"
    layer: ClassVar[str] = "metrics"
    folds: ClassVar[bool] = True

    condition: str
    index: int | None = None
    detail: str | None = None

    def describe(self) -> str:
        what = CONDITIONS.get(self.condition, self.condition.replace("_", " "))
        if self.condition == "nvlinks_inactive" and self.detail is not None:
            links = self.detail.split(", ")
            which = "" if self.gpu is not None or self.index is None else f" of GPU {self.index}"
            if links == ["all"]:
                what = f"all NVLinks{which} are inactive"
            elif len(links) == 1:
                what = f"NVLink {links[0]}{which} is inactive"
            else:
                what = f"NVLinks {', '.join(links[:-1])} and {links[-1]}{which} are inactive"
        elif self.detail is not None:
            what = f"{what} ({self.detail})"
        return sentence(self, what)


#: The meaning of each condition in a few words.
CONDITIONS = {
    "row_remap_pending": "a memory row is pending to be remapped, which needs a reset of the GPU",
    "row_remap_failed": "remapping of a memory row failed: the GPU is to be replaced",
    "page_retirement_pending": "memory pages are pending to be retired, which needs a reset of the GPU",
    "uncorrected_errors": "uncorrected (double bit) memory errors since the driver was loaded",
    "nvlinks_inactive": "some NVLinks are inactive",
    "fabric_not_ready": "the GPU has not joined its NVLink fabric",
    "unreadable": "nvidia-smi cannot read the GPU (ERR!)",
    "lost": "nvidia-smi says that the GPU is lost",
    "hang": "a monitor reports a hang",
}


class GpuLost(Fact, frozen=True, kw_only=True):
    """The driver reports that the GPU has fallen off the bus, with or without an Xid number.

    Args:
        vendor: as in `GpuDriverError`.
    """

    kind: ClassVar[str] = "kernel_event"
    layer: ClassVar[str] = "kernel"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"detail"})

    detail: str | None = None
    vendor: str | None = None

    def describe(self) -> str:
        return sentence(self, "GPU has fallen off the bus", self.detail)


class GpuDriverError(Fact, frozen=True, kw_only=True):
    """A GPU driver or the fabric manager reports an error that has no Xid.

    Args:
        error: a value of `kernelevents.gpu.error`.
        process: the process that it names.
        vendor: the vendor of the device, a value of `hw.vendor`; None is NVIDIA.
        device: the driver's own name of the device, if it gives no bus id.
    """

    kind: ClassVar[str] = "kernel_event"
    layer: ClassVar[str] = "kernel"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"detail"})

    error: str
    process: str | None = None
    pid: int | None = None
    detail: str | None = None
    vendor: str | None = None
    device: str | None = None

    def describe(self) -> str:
        return sentence(self, f"GPU driver: {self.error.replace('_', ' ')}", self.detail)


class Sxid(Fact, frozen=True, kw_only=True):
    """An NVSwitch error.

    Args:
        fatal: None if the line does not say.
        link: link or port of the switch.
        switch: PCI bus id of the switch.
    """

    kind: ClassVar[str] = "kernel_event"
    layer: ClassVar[str] = "kernel"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"detail"})

    code: int
    fatal: bool | None = None
    link: int | None = None
    switch: str | None = None
    detail: str | None = None

    def describe(self) -> str:
        word = {True: "fatal ", False: "non-fatal ", None: ""}[self.fatal]
        link = f" on NVLink {self.link}" if self.link is not None else ""
        switch = f" of switch {self.switch}" if self.switch is not None else ""
        return sentence(self, f"{word}NVSwitch SXid {self.code}{link}{switch}", self.detail)


class EccDelta(Fact, frozen=True, kw_only=True):
    """An ECC counter rose.

    Args:
        delta: the increase.
        error_type: `uncorrected` or `corrected`.
        subtype: `double_bit` or `single_bit`.
        persistence: `volatile` or `aggregate`.
        index: the index of the GPU on its node as the exporter counts it.
    """

    kind: ClassVar[str] = "hw_error"
    layer: ClassVar[str] = "metrics"

    delta: int
    error_type: str | None = None
    subtype: str | None = None
    persistence: str | None = None
    index: int | None = None

    def describe(self) -> str:
        words = " ".join(w.replace("_", "-") for w in (self.persistence, self.error_type, self.subtype) if w)
        return sentence(self, f"{words + ' ' if words else ''}ECC error counter rose by {self.delta}")


class ThrottleSample(Fact, frozen=True, kw_only=True):
    """A sample of a GPU's temperature, SM clock and reason for throttling. Values that were not sampled are None.

    Args:
        reason: `thermal_hardware`, `thermal_software`, `power`, `none`, or another that the exporter names.
        throttled_s: seconds of throttling since the last sample, from the violation counter of that reason.
        temperature_c: degrees Celsius.
        sm_clock_mhz: SM clock in MHz.
        index: the index of the GPU on its node, if its bus id is not known.
    """

    kind: ClassVar[str] = "gpu_throttle"
    layer: ClassVar[str] = "metrics"

    reason: str | None = None
    throttled_s: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    index: int | None = None

    @property
    def thermal(self) -> bool:
        """Return whether the sample shows throttling because of heat."""
        return self.reason in THERMAL and (self.throttled_s is None or self.throttled_s > 0)

    def describe(self) -> str:
        what = (
            "not throttled" if self.reason == "none" else f"throttled: {(self.reason or 'unknown').replace('_', ' ')}"
        )
        parts = [what if self.reason is not None else "sampled"]
        if self.throttled_s is not None:
            parts.append(f"for {seconds(self.throttled_s)}")
        if self.temperature_c is not None:
            parts.append(f"at {self.temperature_c:g} °C")
        if self.sm_clock_mhz is not None:
            parts.append(f"SM clock {self.sm_clock_mhz:g} MHz")
        which = "" if self.index is None else f" {self.index}"
        return f"GPU{which}{place(self).removeprefix(' on GPU')} {', '.join(parts)}"


class FramebufferSample(Fact, frozen=True, kw_only=True):
    """A sample of a GPU's memory in bytes. A metric point may have only one of the two values."""

    kind: ClassVar[str] = "gpu_memory"
    layer: ClassVar[str] = "metrics"

    free_bytes: int | None = None
    total_bytes: int | None = None

    def describe(self) -> str:
        free = "unknown" if self.free_bytes is None else size(self.free_bytes)
        total = "unknown" if self.total_bytes is None else size(self.total_bytes)
        return sentence(self, f"GPU memory {free} free of {total}")


class AerError(Fact, frozen=True, kw_only=True):
    """A PCIe Advanced Error Reporting line.

    Args:
        severity: `corrected`, `nonfatal` or `fatal`.
        error_type: the PCIe layer, `Physical Layer` and so on.
        port: bus id of the port that reports it.
    """

    kind: ClassVar[str] = "pcie_aer"
    layer: ClassVar[str] = "kernel"
    folds: ClassVar[bool] = True

    severity: str
    error_type: str | None = None
    port: str | None = None

    def describe(self) -> str:
        where = f" in the {self.error_type}" if self.error_type else ""
        return _of_device(self, f"{self.severity} PCIe error{where}")


class AerRecovery(Fact, frozen=True, kw_only=True):
    """The result of the recovery of a device from an uncorrected PCIe error.

    Args:
        succeeded: the device came back.
        port: bus id of the port that reports it.
    """

    kind: ClassVar[str] = "pcie_aer"
    layer: ClassVar[str] = "kernel"
    folds: ClassVar[bool] = True

    succeeded: bool
    port: str | None = None

    def describe(self) -> str:
        return _of_device(self, f"recovery from a PCIe error {'succeeded' if self.succeeded else 'failed'}")


def _of_device(fact: AerError | AerRecovery, what: str) -> str:
    """Describe a fact with its PCI device. A port that reports a device does not say that it is a GPU."""
    port = f" below PCI port {fact.port}" if fact.port is not None else ""
    device = f" at PCI device {fact.gpu}" if fact.gpu is not None else port
    return sentence(msgspec.structs.replace(fact, gpu=None), what + device)


class PcieRateCollapse(Fact, frozen=True, kw_only=True):
    """PCIe traffic of a GPU fell far below its own baseline.

    Args:
        direction: `transmit` or `receive`, if known.
        drop_ratio: lost share of the baseline, 0 to 1.
    """

    kind: ClassVar[str] = "hw_io_collapse"
    layer: ClassVar[str] = "metrics"

    bytes_per_second: float
    baseline_bytes_per_second: float | None = None
    direction: str | None = None
    drop_ratio: float | None = None

    def describe(self) -> str:
        base = self.baseline_bytes_per_second
        what = f"PCIe {self.direction + ' ' if self.direction else ''}rate {size(self.bytes_per_second)}/s"
        return sentence(self, what + (f", baseline {size(base)}/s" if base is not None else ""))


class NvlinkRate(Fact, frozen=True, kw_only=True):
    """An NVLink carries half of what its peers carry, or less.

    Args:
        link: link number.
        bytes_per_second: its rate.
        peer_median: median rate of its peers, bytes per second.
        low_s: seconds that this has lasted.
    """

    kind: ClassVar[str] = "nvlink_rate"
    layer: ClassVar[str] = "metrics"

    link: int | None = None
    bytes_per_second: float
    peer_median: float | None = None
    low_s: float | None = None
    direction: str | None = None

    def describe(self) -> str:
        link = f"NVLink {self.link}" if self.link is not None else "an NVLink"
        peers = f", its peers' median is {size(self.peer_median)}/s" if self.peer_median is not None else ""
        low = f", for {seconds(self.low_s)}" if self.low_s is not None else ""
        return sentence(self, f"{link} carries {size(self.bytes_per_second)}/s{peers}{low}")


class WrongResult(Fact, frozen=True, kw_only=True):
    """A check that computes on a GPU what is known got wrong results, without an error of the GPU.

    Args:
        index: the index of the GPU on its node, if its bus id is not known.
        wrong: number of wrong results, if the check gives it.
        checked: number of all results.
    """

    kind: ClassVar[str] = "wrong_result"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"wrong", "checked"})

    index: int | None = None
    wrong: int | None = None
    checked: int | None = None

    @property
    def who(self) -> str:
        """The GPU as far as it is known."""
        if self.gpu is not None or self.index is not None:
            return f"GPU {self.gpu if self.gpu is not None else self.index}"
        return f"rank {self.rank}" if self.rank is not None else "a GPU"

    @property
    def results(self) -> str:
        """The number of wrong results in words."""
        if self.wrong is None:
            return "wrong results"
        what = "wrong result" if self.wrong == 1 else "wrong results"
        return f"{self.wrong} {what}" + (f" of {self.checked}" if self.checked else "")

    def describe(self) -> str:
        named = "" if self.gpu is not None or self.index is None else f" on GPU {self.index}"
        return sentence(self, f"a check of results got {self.results}{named}")


class SdcCounter(Fact, frozen=True, kw_only=True):
    """A vendor's counter of silent data corruption rose.

    Args:
        delta: the increase.
        counter: the vendor's name of the counter.
    """

    kind: ClassVar[str] = "sdc_counter"
    layer: ClassVar[str] = "metrics"

    delta: int
    counter: str | None = None

    def describe(self) -> str:
        return sentence(
            self, f"silent-corruption counter {self.counter + ' ' if self.counter else ''}rose by {self.delta}"
        )
