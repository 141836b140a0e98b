"""Projectors of kernel lines and metrics about GPUs, links and ports."""

from __future__ import annotations

from typing import Any

from tracecore.facts.coerce import flag, integer, magnitude, name, natural, number, positive, text, word
from tracecore.facts.gpu import (
    AerError,
    AerRecovery,
    EccDelta,
    FramebufferSample,
    GpuCondition,
    GpuDriverError,
    GpuLost,
    NvlinkRate,
    PcieRateCollapse,
    SdcCounter,
    Sxid,
    ThrottleSample,
    WrongResult,
    Xid,
    XidGauge,
)
from tracecore.facts.identity import Stamped, bus_id
from tracecore.facts.network import LinkState, NicError, PortState
from tracecore.facts.projectors.projector import Projection

_PERSISTENCE = {"volatile": "volatile", "aggregate": "aggregate", "persistent": "aggregate"}
_TYPES = {
    "uncorrected": "uncorrected",
    "uncorrectable": "uncorrected",
    "corrected": "corrected",
    "correctable": "corrected",
}
_SUBTYPES = {"double_bit": "double_bit", "dbe": "double_bit", "single_bit": "single_bit", "sbe": "single_bit"}
_PORT_STATES = {"down": 1, "init": 2, "initialize": 2, "initializing": 2, "armed": 3, "active": 4}
_REASONS = {
    "hw_thermal_slowdown": "thermal_hardware",
    "sw_thermal_slowdown": "thermal_software",
    "power_cap": "power",
    "sw_power_cap": "power",
    "": "none",
}


def xid(record: Stamped) -> Xid | None:
    code = positive(record.get("kernelevents.xid"))
    if code is None:
        return None
    get = record.get
    return Xid(
        **record.identity(),
        code=code,
        process=name(get("kernelevents.xid.process")),
        pid=positive(get("process.pid")),
        cause=positive(get("kernelevents.xid.cause")),
        link=natural(get("kernelevents.xid.link")),
        detail=text(get("kernelevents.xid.detail"), 512),
        **(_decoded(record) if code >= 144 else {}),
    )


def _decoded(record: Stamped) -> dict[str, Any]:
    """Return the fields that only NVLink errors (144 to 150) and recovery actions (154) have."""
    return {
        "unit": name(record.get("kernelevents.xid.unit")),
        "fatal": flag(record.get("kernelevents.xid.fatal")),
        "intr_info": natural(record.get("kernelevents.xid.intr_info")),
        "error_status": natural(record.get("kernelevents.xid.error_status")),
        "recovery": name(record.get("kernelevents.xid.recovery")),
    }


def xid_gauge(record: Stamped) -> XidGauge | None:
    code = positive(record.get("hw.gpu.xid.last"))
    identity = record.identity()
    return None if code is None or "gpu" not in identity else XidGauge(**identity, code=code)


def gpu_condition(record: Stamped) -> GpuCondition | None:
    condition = word(record.get("hw.gpu.condition"))
    if condition is None:
        return None
    index, detail = natural(record.get("hw.gpu.index")), name(record.get("hw.gpu.condition.detail"))
    return GpuCondition(**record.identity(), condition=condition, index=index, detail=detail)


def gpu_lost(record: Stamped) -> GpuLost | None:
    if flag(record.get("kernelevents.gpu_lost")) is not True:
        return None
    return GpuLost(
        **record.identity(),
        detail=text(record.get("kernelevents.xid.detail"), 512) or record.body,
        vendor=word(record.get("hw.vendor")),
    )


def sxid(record: Stamped) -> Sxid | None:
    code = positive(record.get("kernelevents.sxid"))
    if code is None:
        return None
    return Sxid(
        **record.identity(),
        code=code,
        fatal=flag(record.get("kernelevents.sxid.fatal")),
        link=natural(record.get("kernelevents.sxid.link")),
        switch=bus_id(record.get("kernelevents.sxid.switch")),
        detail=text(record.get("kernelevents.sxid.detail"), 512) or record.body,
    )


def gpu_driver_error(record: Stamped) -> GpuDriverError | None:
    error = word(record.get("kernelevents.gpu.error"))
    if error is None:
        return None
    return GpuDriverError(
        **record.identity(),
        error=error,
        process=name(record.get("kernelevents.gpu.process")),
        pid=positive(record.get("process.pid")),
        detail=record.body,
        vendor=word(record.get("hw.vendor")),
        device=name(record.get("kernelevents.gpu.device")),
    )


def ecc_delta(record: Stamped) -> EccDelta | None:
    delta = positive(record.get("hw.errors.delta"))
    identity = record.identity()
    if delta is None or "gpu" not in identity:
        return None
    error, subtype, persistence = (word(record.get(n)) for n in ("error.type", "error.subtype", "error.persistence"))
    return EccDelta(
        **identity,
        delta=delta,
        error_type=_TYPES.get(error, error) if error else None,
        subtype=_SUBTYPES.get(subtype, subtype) if subtype else None,
        persistence=_PERSISTENCE.get(persistence, persistence) if persistence else None,
        index=natural(record.get("hw.gpu.index")),
    )


def throttle_sample(record: Stamped) -> ThrottleSample | None:
    identity = record.identity()
    index = None if "gpu" in identity else natural(record.get("hw.gpu.index"))
    if "gpu" not in identity and index is None:
        uuid = name(record.get("gpu.uuid"))
        if uuid is None:
            return None
        identity = {**identity, "gpu": uuid}
    reason = word(record.get("hw.gpu.throttle.reason"))
    throttled = magnitude(record.get("hw.gpu.throttle.duration"))
    if throttled is None and magnitude(record.get("hw.gpu.throttle.active")) == 0:
        throttled = 0.0  # there is one series for each reason, and this reason is not active
    sample = ThrottleSample(
        **identity,
        reason=_REASONS.get(reason, reason) if reason else None,
        throttled_s=throttled,
        temperature_c=number(record.get("hw.gpu.temperature")),
        sm_clock_mhz=magnitude(record.get("hw.gpu.clock.sm")),
        index=index,
    )
    measured = (sample.reason, sample.throttled_s, sample.temperature_c, sample.sm_clock_mhz)
    return None if all(value is None for value in measured) else sample


def throttle_sample_by_index(record: Stamped) -> ThrottleSample | None:
    """Return a sample of a GPU without a bus id, by its index."""
    return None if record.get("gpu.id") is not None else throttle_sample(record)


def throttle_sample_by_uuid(record: Stamped) -> ThrottleSample | None:
    """Return a sample of a GPU without bus id and index. It has the UUID until another file gives more."""
    known = record.get("gpu.id") is not None or record.get("hw.gpu.index") is not None
    return None if known else throttle_sample(record)


def framebuffer_sample(record: Stamped) -> FramebufferSample | None:
    identity = record.identity()
    free, total = _bytes(record, "hw.gpu.memory.free"), _bytes(record, "hw.gpu.memory.total")
    if "gpu" not in identity or (free is None and total is None):
        return None
    return FramebufferSample(**identity, free_bytes=free, total_bytes=total)


def _bytes(record: Stamped, attribute: str) -> int | None:
    """Return whole bytes. Gauges are often doubles with fractions from the conversion of units."""
    value = magnitude(record.get(attribute))
    return None if value is None else integer(float(round(value)))


def aer_error(record: Stamped) -> AerError | None:
    severity = aer_severity(record.get("kernelevents.pcie_aer.severity"))
    if severity is None:
        return None
    # Without a bus id of a GPU, it is an error of a port or another device of the machine.
    return AerError(
        **record.identity(),
        severity=severity,
        error_type=name(record.get("kernelevents.pcie_aer.type")),
        port=bus_id(record.get("kernelevents.pcie_aer.port")),
    )


def aer_recovery(record: Stamped) -> AerRecovery | None:
    outcome = {"succeeded": True, "failed": False}.get(word(record.get("kernelevents.pcie_aer.recovery")) or "")
    if outcome is None:
        return None
    return AerRecovery(**record.identity(), succeeded=outcome, port=bus_id(record.get("kernelevents.pcie_aer.port")))


def aer_severity(value: object) -> str | None:
    """Return `corrected`, `nonfatal` or `fatal` for any of the kernel's wordings."""
    found = word(value)
    if found is None:
        return None
    found = found.replace("_", "")
    if "nonfatal" in found:
        return "nonfatal"
    if "fatal" in found:
        return "fatal"
    return "corrected" if found.startswith("correct") else None


def pcie_rate_collapse(record: Stamped) -> PcieRateCollapse | None:
    prefix = "tracecore.alert.pcie_rate_collapse."
    rate = magnitude(record.get(prefix + "bytes_per_second"))
    identity = record.identity()
    if rate is None or "gpu" not in identity:
        return None
    baseline = magnitude(record.get(prefix + "baseline_bytes_per_second"))
    drop = number(record.get(prefix + "drop_ratio"))
    if drop is None and baseline:
        drop = 1 - rate / baseline
    direction = word(record.get(prefix + "direction")) or word(record.get("network.io.direction"))
    return PcieRateCollapse(
        **identity, bytes_per_second=rate, baseline_bytes_per_second=baseline, direction=direction, drop_ratio=drop
    )


def nvlink_rate(record: Stamped) -> NvlinkRate | None:
    rate = magnitude(record.get("hw.gpu.nvlink.rate"))
    if rate is None:
        return None
    return NvlinkRate(
        **record.identity(),
        link=natural(record.get("hw.gpu.nvlink.link")),
        bytes_per_second=rate,
        peer_median=magnitude(record.get("hw.gpu.nvlink.peer_median")),
        low_s=magnitude(record.get("hw.gpu.nvlink.low_seconds")),
        direction=word(record.get("network.io.direction")),
    )


def sdc_counter(record: Stamped) -> SdcCounter | None:
    delta = positive(record.get("hw.gpu.sdc.delta"))
    if delta is None:
        return None
    return SdcCounter(**record.identity(), delta=delta, counter=name(record.get("hw.gpu.sdc.kind")))


def wrong_result(record: Stamped) -> WrongResult | None:
    if flag(record.get("hw.gpu.result.wrong")) is not True:
        return None
    return WrongResult(
        **record.identity(),
        index=natural(record.get("hw.gpu.index")),
        wrong=positive(record.get("hw.gpu.result.wrong_count")),
        checked=positive(record.get("hw.gpu.result.checked_count")),
    )


def port_state(record: Stamped) -> PortState | None:
    device = name(record.get("hw.network.ib.device"))
    given = record.get("hw.network.ib.port.state")
    state = integer(given)
    if state is None and (named := word(given)) is not None:
        # sysfs writes `4: ACTIVE`, drivers write only the word.
        state = _PORT_STATES.get(named.rpartition(":")[2].strip("_"))
    if device is None or state is None or not 1 <= state <= 4:
        return None
    port = record.get("hw.network.ib.port.num")
    number_ = 1 if port is None else natural(port)
    if number_ is None:
        return None
    process = name(record.get("hw.network.ib.port.process"))
    return PortState(**record.identity(), device=device, port=number_, state=state, process=process)


def nic_error(record: Stamped) -> NicError | None:
    error = word(record.get("kernelevents.nic.error"))
    if error is None:
        return None
    device = bus_id(record.get("kernelevents.nic.device"))
    return NicError(**record.identity(), error=error, device=device, detail=record.body)


def link_state(record: Stamped) -> LinkState | None:
    interface, up = name(record.get("network.interface.name")), flag(record.get("hw.network.up"))
    return None if interface is None or up is None else LinkState(**record.identity(), interface=interface, up=up)


GPU = (
    Projection(xid, gate=("kernelevents.xid",)),
    Projection(xid_gauge, gate=("hw.gpu.xid.last", "gpu.id")),
    Projection(gpu_condition, gate=("hw.gpu.condition",)),
    Projection(gpu_lost, gate=("kernelevents.gpu_lost",)),
    Projection(sxid, gate=("kernelevents.sxid",)),
    Projection(gpu_driver_error, gate=("kernelevents.gpu.error",)),
    Projection(aer_recovery, gate=("kernelevents.pcie_aer.recovery",)),
    Projection(nic_error, gate=("kernelevents.nic.error",)),
    Projection(link_state, gate=("hw.network.up", "network.interface.name")),
    Projection(aer_error, gate=("kernelevents.pcie_aer.severity",)),
    Projection(ecc_delta, gate=("hw.errors.delta", "gpu.id")),
    Projection(
        throttle_sample,
        gate=("gpu.id",),
        either=("hw.gpu.throttle.reason", "hw.gpu.throttle.duration", "hw.gpu.temperature", "hw.gpu.clock.sm"),
    ),
    Projection(
        throttle_sample_by_index,
        gate=("hw.gpu.index",),
        either=("hw.gpu.throttle.reason", "hw.gpu.throttle.duration", "hw.gpu.temperature", "hw.gpu.clock.sm"),
    ),
    Projection(
        throttle_sample_by_uuid,
        gate=("gpu.uuid",),
        either=("hw.gpu.throttle.reason", "hw.gpu.throttle.duration", "hw.gpu.temperature", "hw.gpu.clock.sm"),
    ),
    Projection(framebuffer_sample, gate=("gpu.id",), either=("hw.gpu.memory.free", "hw.gpu.memory.total")),
    Projection(pcie_rate_collapse, gate=("tracecore.alert.pcie_rate_collapse.bytes_per_second", "gpu.id")),
    Projection(nvlink_rate, gate=("hw.gpu.nvlink.rate",)),
    Projection(sdc_counter, gate=("hw.gpu.sdc.delta",)),
    Projection(wrong_result, gate=("hw.gpu.result.wrong",)),
    Projection(port_state, gate=("hw.network.ib.port.state", "hw.network.ib.device")),
)
