"""GPUs as NVIDIA's driver tells of them, through its library (NVML).

A value that a GPU or a driver does not have is left out: not measured is not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from tracecore.agent.receivers.gpu.measurement import Value

MIB: Final = 1 << 20
#: Links of a GPU that are asked for.
MOST_LINKS: Final = 36
#: Time that a reason has held the clocks down: NVML's name for it, and ours.
_POLICIES: Final = (
    ("NVML_PERF_POLICY_THERMAL", "thermal_software"),
    ("NVML_PERF_POLICY_POWER", "power"),
    ("NVML_PERF_POLICY_BOARD_LIMIT", "board_limit"),
    ("NVML_PERF_POLICY_RELIABILITY", "reliability"),
)
_ERRORS: Final = (
    ("NVML_MEMORY_ERROR_TYPE_CORRECTED", "corrected", "single_bit"),
    ("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "uncorrected", "double_bit"),
)
_PERSISTENCE: Final = (("NVML_VOLATILE_ECC", "volatile"), ("NVML_AGGREGATE_ECC", "aggregate"))
_WAYS: Final = ("transmit", "receive")
#: Members of NVML's value, by its type.
_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class NvmlError(Exception):
    """The driver cannot be asked."""


class _Lost(Exception):
    """A GPU does not answer any more."""


class Nvml:
    """The driver, opened.

    Raises:
        NvmlError: there is none; says why.
    """

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise NvmlError("nvidia-ml-py is not installed: pip install nvidia-ml-py") from None
        self._nvml: Any = pynvml
        self._absent = tuple(
            kind
            for name in (
                "NotSupported", "NoPermission", "NotFound", "FunctionNotFound", "InvalidArgument", "Unknown", "NoData",
                "Timeout", "NotReady", "ArgumentVersionMismatch",
            )
            if (kind := getattr(pynvml, f"NVMLError_{name}", None)) is not None
        )  # fmt: skip
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlError(f"NVIDIA's driver does not answer: {error}") from None
        self._known: dict[int, dict[str, str | int]] = {}
        #: GPUs that do not answer, and why.
        self.lost: dict[str, str] = {}

    def close(self) -> None:
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return  # it is gone already

    def collect(self) -> list[Value]:
        """Return what all GPUs say now.

        Raises:
            NvmlError: the driver does not answer; open it anew.
        """
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise NvmlError(f"NVIDIA's driver does not answer: {error}") from None
        made: list[Value] = []
        self.lost = {}
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                who = self._who(handle, index)
                made += list(self._values(handle, who))  # all of it or nothing
            except (_Lost, nvml.NVMLError) as error:
                known = self._known.get(index, {})
                self.lost[str(known.get("gpu.id") or f"GPU {index}")] = str(error)
        return made

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """An answer; None where this GPU, driver or account has none."""
        try:
            return call(*arguments)
        except self._absent:
            return None
        except self._nvml.NVMLError as error:
            raise _Lost(str(error)) from None

    def _who(self, handle: Any, index: int) -> dict[str, str | int]:
        nvml = self._nvml
        uuid = _text(self._ask(nvml.nvmlDeviceGetUUID, handle))
        known = self._known.get(index)
        if known is not None and known.get("gpu.uuid") == uuid:
            return known
        who: dict[str, str | int] = {"gpu.vendor": "nvidia", "hw.gpu.index": index}
        if uuid:
            who["gpu.uuid"] = uuid
        pci = self._ask(nvml.nvmlDeviceGetPciInfo, handle)
        if pci is not None and (bus := bus_id(_text(pci.busId))):
            who["gpu.id"] = bus
        self._known[index] = who
        return who

    def _values(self, handle: Any, who: dict[str, str | int]) -> Iterator[Value]:
        nvml, ask = self._nvml, self._ask
        if (heat := ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)) is not None:
            yield Value("hw.gpu.temperature", heat, "Cel", who)
        for name, clock in (("sm", nvml.NVML_CLOCK_SM), ("memory", nvml.NVML_CLOCK_MEM)):
            if (speed := ask(nvml.nvmlDeviceGetClockInfo, handle, clock)) is not None:
                yield Value(f"hw.gpu.clock.{name}", speed, "MHz", who)
        if (busy := ask(nvml.nvmlDeviceGetUtilizationRates, handle)) is not None:
            yield Value("hw.gpu.utilization", busy.gpu / 100, "1", who)
        yield from self._memory(handle, who)
        if (power := ask(nvml.nvmlDeviceGetPowerUsage, handle)) is not None:
            yield Value("hw.gpu.power", power / 1000, "W", who)
        if (energy := ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)) is not None:
            yield Value("hw.energy", energy / 1000, "J", who, True)
        if (replays := ask(nvml.nvmlDeviceGetPcieReplayCounter, handle)) is not None:
            yield Value("hw.gpu.pcie.replays", replays, "{replay}", who, True)
        yield from self._errors(handle, who)
        yield from self._throttle(handle, who)
        yield from self._fields(handle, who)

    def _memory(self, handle: Any, who: dict[str, str | int]) -> Iterator[Value]:
        nvml = self._nvml
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle, getattr(nvml, "nvmlMemory_v2", None))
        if memory is None:
            memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        for name in ("free", "used", "total", "reserved"):
            if (size := getattr(memory, name, None)) is not None:
                yield Value(f"hw.gpu.memory.{name}", size, "By", who)

    def _errors(self, handle: Any, who: dict[str, str | int]) -> Iterator[Value]:
        nvml = self._nvml
        for kind, name, subtype in _ERRORS:
            for counter, persistence in _PERSISTENCE:
                count = self._ask(nvml.nvmlDeviceGetTotalEccErrors, handle, getattr(nvml, kind), getattr(nvml, counter))
                if count is not None:
                    about = {
                        "hw.type": "gpu",
                        "error.type": name,
                        "error.subtype": subtype,
                        "error.persistence": persistence,
                    }
                    yield Value("hw.errors", count, "{error}", {**who, **about}, True)
        rows = self._ask(nvml.nvmlDeviceGetRemappedRows, handle)
        if rows is not None:
            corrected, uncorrected, _, failed = rows
            for name, count in (("corrected", corrected), ("uncorrected", uncorrected)):
                yield Value("hw.gpu.memory.remapped_rows", count, "{row}", {**who, "error.type": name}, True)
            yield Value("hw.gpu.memory.remap_failure", failed, "1", who)

    def _throttle(self, handle: Any, who: dict[str, str | int]) -> Iterator[Value]:
        nvml = self._nvml
        newer = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        mask = self._ask(newer, handle) if newer is not None else None
        if mask is None:
            mask = self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        if mask is not None:
            yield Value("hw.gpu.throttle.mask", mask, "1", who)
        for policy, reason in _POLICIES:
            held = self._ask(nvml.nvmlDeviceGetViolationStatus, handle, getattr(nvml, policy))
            if held is not None:
                about = {**who, "hw.gpu.throttle.reason": reason}
                yield Value("hw.gpu.throttle.duration", held.violationTime / 1e9, "s", about, True)

    def _fields(self, handle: Any, who: dict[str, str | int]) -> Iterator[Value]:
        """Yield what has no function of its own, in one call: memory's temperature, traffic of PCIe and of NVLinks."""
        nvml = self._nvml
        links: list[int] = []
        for link in range(MOST_LINKS):
            state = self._ask(nvml.nvmlDeviceGetNvLinkState, handle, link)
            if state is None:
                break  # there are no more
            if state == nvml.NVML_FEATURE_ENABLED:
                links.append(link)
        wanted: list[Any] = [
            nvml.NVML_FI_DEV_MEMORY_TEMP, nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
        ]  # fmt: skip
        for link in links:
            wanted += [
                (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, link), (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, link),
            ]  # fmt: skip
        found = self._ask(nvml.nvmlDeviceGetFieldValues, handle, wanted)
        values = [None] * len(wanted) if found is None else [_field(value) for value in found]
        if values[0]:  # a memory without a sensor reports 0
            yield Value("hw.gpu.memory.temperature", values[0], "Cel", who)
        for way, count in zip(_WAYS, values[1:3], strict=True):
            about = {**who, "network.io.direction": way}
            if count is not None:
                yield Value("hw.gpu.io", count, "By", about, True)
            elif (rate := self._rate(handle, way)) is not None:
                yield Value("hw.gpu.io", rate, "By", about)
        for place, link in enumerate(links):
            for way, count in zip(_WAYS, values[3 + 2 * place : 5 + 2 * place], strict=True):
                if count is not None:
                    about = {**who, "hw.gpu.nvlink.link": link, "network.io.direction": way}
                    yield Value("hw.gpu.nvlink.io", 1024 * count, "By", about, True)

    def _rate(self, handle: Any, way: str) -> float | None:
        """Bytes per second over PCIe, measured by the driver over 20 ms: for those that do not count them."""
        nvml = self._nvml
        kind = nvml.NVML_PCIE_UTIL_TX_BYTES if way == "transmit" else nvml.NVML_PCIE_UTIL_RX_BYTES
        kilobytes = self._ask(nvml.nvmlDeviceGetPcieThroughput, handle, kind)
        return None if kilobytes is None else 1000.0 * kilobytes


def _field(value: Any) -> float | None:
    if value.nvmlReturn != 0 or not 0 <= value.valueType < len(_MEMBERS):
        return None
    found: float = getattr(value.value, _MEMBERS[value.valueType])
    return found


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value or "")


def bus_id(text: str) -> str:
    """`00000000:3B:00.0` as `0000:3b:00.0`; empty for what is none."""
    domain, _, rest = text.strip().lower().partition(":")
    if not rest or not domain or any(c not in "0123456789abcdef:." for c in domain + rest):
        return ""
    if len(domain) > 4 and domain.startswith("0" * (len(domain) - 4)):
        domain = domain[-4:]
    return f"{domain}:{rest if '.' in rest else rest + '.0'}"
