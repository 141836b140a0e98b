"""`nvidia-smi`, `nvidia-smi -q` and `nvidia-smi dmon` as metric points with `hw.*` names.

`smi_csv` reads tables of `nvidia-smi --query-gpu=…` with the same names.

| name | unit | labels beside `gpu.id`, `hw.gpu.index`, `gpu.uuid` |
|---|---|---|
| hw.gpu.temperature, hw.gpu.memory.temperature | °C | |
| hw.gpu.clock.sm, hw.gpu.clock.sm.max, hw.gpu.clock.memory | MHz | |
| hw.gpu.power, hw.gpu.power.limit | W | |
| hw.gpu.memory.total, .used, .free | bytes | |
| hw.gpu.utilization | 0 to 1 | |
| hw.gpu.throttle.active | 0, 1 | hw.gpu.throttle.reason: power, thermal_hardware, thermal_software, idle, … |
| hw.gpu.throttle.duration | s, counter | the same |
| hw.errors | counter | error.type, error.subtype, error.persistence |
| hw.gpu.remapped_rows | count | error.type; kind pending, failure as 0, 1 |
| hw.gpu.retired_pages | count | error.subtype; kind pending as 0, 1 |
| hw.gpu.ecc.uncorrected | count | detail |
| hw.gpu.unreadable | 0, 1 | of the tables of `nvidia-smi`, where a GPU shows ERR! or asks for a reset |
| hw.gpu.lost | 0, 1 | of the tables of `nvidia-smi`, where it says that a GPU is lost |
| hw.gpu.io | bytes per second | network.io.direction; of `nvidia-smi dmon` |
| hw.gpu.nvlink.inactive | count | hw.gpu.condition.detail: which; of `nvidia-smi nvlink --status` |
| hw.gpu.fabric.unready | 0, 1 | hw.gpu.condition.detail: as printed; whether the GPU has still to join its fabric |
| hw.gpu.pcie.link.generation, .width, and .max of both | | |
| hw.gpu.pcie.replays | counter | |
| hw.gpu.recovery_action | 1 | action: as printed, only where there is one |
"""

from __future__ import annotations

from collections.abc import Iterator

import re2

from tracecore.signals import stamps, whole
from tracecore.signals.metrics.point import Point
from tracecore.signals.record import Source
from tracecore.signals.stream import Clock, Counters, Stream

MAX_BYTES = 256 << 20

_BUS = re2.compile(r"^(?i)([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-9a-f]))?$")
_NUMBER = re2.compile(r"^(-?\d+(?:\.\d+)?)\s*([A-Za-z%/]*)")
_FIELD = re2.compile(rb"^( *)([^:\n]+?) *: ?(.*)$")
_SCALE = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "%": 0.01, "us": 1e-6, "ms": 1e-3}

REASONS = {
    "sw power cap": "power",
    "sw power capping": "power",
    "hw slowdown": "slowdown_hardware",
    "hw thermal slowdown": "thermal_hardware",
    "hw power brake slowdown": "power_brake",
    "hw power brake": "power_brake",
    "hw power braking": "power_brake",
    "sw thermal slowdown": "thermal_software",
    "idle": "idle",
    "gpu idle": "idle",
    "sync boost": "sync_boost",
    "applications clocks setting": "applications_clocks",
}
# Section path, lower case, below the GPU → name. A section may have had other names in other versions of the driver.
_QUERY = {
    "temperature/gpu current temp": "hw.gpu.temperature",
    "temperature/memory current temp": "hw.gpu.memory.temperature",
    "clocks/sm": "hw.gpu.clock.sm",
    "clocks/memory": "hw.gpu.clock.memory",
    "max clocks/sm": "hw.gpu.clock.sm.max",
    "gpu power readings/instantaneous power draw": "hw.gpu.power",
    "gpu power readings/power draw": "hw.gpu.power",
    "power readings/power draw": "hw.gpu.power",
    "gpu power readings/current power limit": "hw.gpu.power.limit",
    "power readings/power limit": "hw.gpu.power.limit",
    "fb memory usage/total": "hw.gpu.memory.total",
    "fb memory usage/used": "hw.gpu.memory.used",
    "fb memory usage/free": "hw.gpu.memory.free",
    "utilization/gpu": "hw.gpu.utilization",
    "pci/gpu link info/pcie generation/current": "hw.gpu.pcie.link.generation",
    "pci/gpu link info/pcie generation/max": "hw.gpu.pcie.link.generation.max",
    "pci/gpu link info/link width/current": "hw.gpu.pcie.link.width",
    "pci/gpu link info/link width/max": "hw.gpu.pcie.link.width.max",
    "pci/replays since reset": "hw.gpu.pcie.replays",
}
#: Columns of `nvidia-smi dmon`, with what their numbers are multiplied by.
_DMON: dict[str, tuple[str, dict[str, str], float]] = {
    "pwr": ("hw.gpu.power", {}, 1),
    "gtemp": ("hw.gpu.temperature", {}, 1),
    "mtemp": ("hw.gpu.memory.temperature", {}, 1),
    "sm": ("hw.gpu.utilization", {}, 0.01),
    "pclk": ("hw.gpu.clock.sm", {}, 1),
    "mclk": ("hw.gpu.clock.memory", {}, 1),
    "pviol": ("hw.gpu.throttle.active", {"hw.gpu.throttle.reason": "power"}, 1),
    "tviol": ("hw.gpu.throttle.active", {"hw.gpu.throttle.reason": "thermal_software"}, 1),
    "dbecc": ("hw.gpu.ecc.uncorrected", {}, 1),
    "rxpci": ("hw.gpu.io", {"network.io.direction": "receive"}, 1e6),
    "txpci": ("hw.gpu.io", {"network.io.direction": "transmit"}, 1e6),
}
#: Columns of `dcgmi dmon`, whose names are short, and the fields that they stand for.
_DCGMI = {
    "tmptr": "DCGM_FI_DEV_GPU_TEMP", "mmtmp": "DCGM_FI_DEV_MEMORY_TEMP", "smclk": "DCGM_FI_DEV_SM_CLOCK",
    "mmclk": "DCGM_FI_DEV_MEM_CLOCK", "power": "DCGM_FI_DEV_POWER_USAGE", "gputl": "DCGM_FI_DEV_GPU_UTIL",
    "dvcctr": "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "tviol": "DCGM_FI_DEV_THERMAL_VIOLATION",
    "pviol": "DCGM_FI_DEV_POWER_VIOLATION", "xider": "DCGM_FI_DEV_XID_ERRORS", "edvdv": "DCGM_FI_DEV_ECC_DBE_VOL_DEV",
    "fbusd": "DCGM_FI_DEV_FB_USED", "fbfre": "DCGM_FI_DEV_FB_FREE",
}  # fmt: skip
#: The interval of `nvidia-smi dmon` where nobody asks for another.
_ROUND = 1_000_000_000


def bus_id(text: str) -> str | None:
    """A PCI bus id in the one spelling used everywhere: `dddd:bb:dd.f`, lower case."""
    match = _BUS.match(text.strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function or 0}".lower()


def number(text: str, unit: str = "") -> float | None:
    """A printed number in base units; None for `N/A` and the like."""
    match = _NUMBER.match(text.strip())
    if match is None:
        return None
    scale = _SCALE.get(match.group(2) or unit, 1)
    return float(match.group(1)) * scale


def read_query(stream: Stream, clock: Clock, counters: Counters) -> Iterator[Point]:
    """`nvidia-smi -q`, also several one after another in one file."""
    data = whole.content(stream, MAX_BYTES)
    counters.bytes_read += len(data)
    base = host_of(stream)
    when, inferred = clock.latest, True
    gpu: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    index = -1
    offset = 0
    for line, raw in enumerate(data.split(b"\n"), 1):
        here, offset = offset, offset + len(raw) + 1
        if b"NVSMI LOG" in raw:
            index, gpu, path = -1, {}, []
            continue
        if raw.startswith(b"GPU "):
            index += 1
            gpu = {**base, "hw.gpu.index": str(index)}
            if bus := bus_id(raw[4:].decode("utf-8", "replace")):
                gpu["gpu.id"] = bus
            path = []
            continue
        match = _FIELD.match(raw.rstrip())
        text = raw.decode("utf-8", "replace")
        indent = len(text) - len(text.lstrip(" "))
        while path and path[-1][0] >= indent:
            path.pop()
        if match is None:
            if text.strip():
                path.append((indent, text.strip().lower()))
            continue
        name, value = (
            match.group(2).decode("utf-8", "replace").lower(),
            match.group(3).decode("utf-8", "replace").strip(),
        )
        if name == "timestamp" and not gpu:
            stamp = stamps.find(value.encode())
            if stamp is not None:
                when, inferred = stamp.resolve(clock.latest), False
            continue
        if name == "gpu uuid":
            gpu["gpu.uuid"] = value
        elif name == "product name":
            gpu["gpu.model"] = value
        # "HW Slowdown : Active" has a value and children; what is below it hangs on it.
        full = "/".join([section for _, section in path] + [name])
        path.append((indent, name))
        if gpu:
            for metric, labels, amount in _query_field(full, value):
                counters.records += 1
                yield Point(
                    name=metric,
                    labels={**gpu, **labels},
                    value=amount,
                    time=when,
                    source=Source(stream.path, here, line, len(raw)),
                    inferred=inferred,
                )


_NVLINK_GPU = re2.compile(rb"^GPU (\d+): .*\(UUID: (GPU-[0-9a-f-]+)\)")
_NVLINK = re2.compile(rb"^\s+Link (\d+): (\S+)")
#: Modules on boards that connect them by NVLink, as nvidia-smi names them; cards may stand alone.
_MODULE = re2.compile(rb"SXM|HBM3|\bH200 \(UUID|\bB[23]00|\bGB[23]00")
#: How the output of `nvidia-smi nvlink --status` begins.
NVLINK_BEGINS = re2.compile(rb"^GPU \d+: [^\n]*\(UUID: GPU-[0-9a-f-]+\)\s*\n\s+Link \d+: ")


def read_nvlink(stream: Stream, clock: Clock, counters: Counters) -> Iterator[Point]:
    """`nvidia-smi nvlink --status`: how many links of each GPU are inactive.

    Links of a card may all be unused; not those of a GPU whose neighbours use theirs, or of a module with NVLink.
    """
    data = whole.content(stream, MAX_BYTES)
    counters.bytes_read += len(data)
    gpus: dict[int, tuple[dict[str, str], list[tuple[str, bool]], Source]] = {}
    modules: set[int] = set()
    offset, index = 0, -1
    for line, raw in enumerate(data.split(b"\n"), 1):
        here, offset = offset, offset + len(raw) + 1
        if match := _NVLINK_GPU.match(raw):
            index = int(match.group(1))
            labels = {**host_of(stream), "hw.gpu.index": str(index), "gpu.uuid": match.group(2).decode()}
            gpus[index] = (labels, [], Source(stream.path, here, line, len(raw)))
            if _MODULE.search(raw) is not None:
                modules.add(index)
        elif index in gpus and (match := _NVLINK.match(raw)):
            gpus[index][1].append((match.group(1).decode(), b"inactive" not in match.group(2)))
    used = any(active for _, links, _ in gpus.values() for _, active in links)
    for index, (labels, links, source) in gpus.items():
        counters.records += 1
        off = [link for link, active in links if not active]
        if off and (len(off) < len(links) or used or index in modules):
            labels["hw.gpu.condition.detail"] = ", ".join(off) if len(off) < len(links) else "all"
        else:
            off = []
        yield _seen("hw.gpu.nvlink.inactive", labels, float(len(off)), clock, source)


_ROW = re2.compile(
    rb"^\| +(\d+) +[^|]*\| +([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d) +\S+ +\| +(\d+|N/A|Off|ERR!)"
)
#: How the table of `nvidia-smi` begins, below a date.
TABLE = re2.compile(rb"(?m)^\| NVIDIA-SMI \S+ +(?:KMD Version: \S+ +)?Driver Version: ")


def is_table(head: bytes) -> bool:
    """Return whether most of a file is the table; a program's log may begin with it."""
    if TABLE.search(head[:1024]) is None:
        return False
    lines = [line for line in head.split(b"\n") if line.strip()]
    return 2 * sum(line.startswith((b"|", b"+")) for line in lines) > len(lines)


def read_table(stream: Stream, clock: Clock, counters: Counters) -> Iterator[Point]:
    """The table of `nvidia-smi`: uncorrected memory errors of each GPU, and whether it can be read at all."""
    data = whole.content(stream, MAX_BYTES)
    counters.bytes_read += len(data)
    labels: dict[str, str] = {}
    source = Source(stream.path)
    broken: dict[str, tuple[dict[str, str], Source]] = {}
    offset = 0
    for line, raw in enumerate(data.split(b"\n"), 1):
        here, offset = offset, offset + len(raw) + 1
        if match := _ROW.match(raw):
            index, bus, ecc = (group.decode() for group in match.groups())
            labels = {**host_of(stream), "hw.gpu.index": index, "gpu.id": bus_id(bus) or ""}
            source = Source(stream.path, here, line, len(raw))
            errors = float(ecc) if ecc.isdigit() else 0.0
            counters.records += 1
            yield _seen("hw.gpu.ecc.uncorrected", labels, errors, clock, source)
        if labels and b"ERR!" in raw:
            broken[labels["gpu.id"]] = labels, source
        elif raw.startswith(b"+"):
            labels = {}
    for labels, source in broken.values():
        yield _seen("hw.gpu.unreadable", labels, 1.0, clock, source)


def _seen(name: str, labels: dict[str, str], value: float, clock: Clock, source: Source) -> Point:
    return Point(name=name, labels=labels, value=value, time=clock.latest, source=source, inferred=True)


def _query_field(full: str, value: str) -> Iterator[tuple[str, dict[str, str], float]]:
    section, _, last = full.partition("/")
    leaf = full.rsplit("/", 1)[-1]
    if section in ("clocks event reasons", "clocks throttle reasons") and last:
        if (reason := REASONS.get(leaf)) and value in ("Active", "Not Active"):
            yield "hw.gpu.throttle.active", {"hw.gpu.throttle.reason": reason}, float(value == "Active")
    elif section in ("clocks event reasons counters", "clocks throttle reasons counters"):
        if (reason := REASONS.get(leaf)) and (amount := number(value)) is not None:
            yield "hw.gpu.throttle.duration", {"hw.gpu.throttle.reason": reason}, amount
    elif full == "ecc errors/volatile/double bit/total" and (amount := number(value)) is not None:
        yield "hw.gpu.ecc.uncorrected", {}, amount
    elif section == "ecc errors" and full.count("/") == 2 and full.split("/")[1] in ("volatile", "aggregate"):
        if (labels := _ecc(leaf)) and (amount := number(value)) is not None:
            yield "hw.errors", {**labels, "error.persistence": full.split("/")[1]}, amount
            if labels["error.type"] == "uncorrected" and full.split("/")[1] == "volatile":
                yield "hw.gpu.ecc.uncorrected", {"detail": leaf}, amount
    elif section == "remapped rows" and full.count("/") == 1:
        if leaf in ("correctable error", "uncorrectable error") and (amount := number(value)) is not None:
            kind = "corrected" if leaf.startswith("corr") else "uncorrected"
            yield "hw.gpu.remapped_rows", {"error.type": kind}, amount
        elif leaf in ("pending", "remapping failure occurred") and value in ("Yes", "No"):
            kind = "pending" if leaf == "pending" else "failure"
            yield "hw.gpu.remapped_rows", {"kind": kind}, float(value == "Yes")
    elif section == "retired pages" and leaf in ("pending page blacklist", "pending retirement", "pending"):
        if value in ("Yes", "No"):
            yield "hw.gpu.retired_pages", {"kind": "pending"}, float(value == "Yes")
    elif section == "retired pages" and (amount := number(value)) is not None:
        kind = "single_bit" if leaf.startswith("single") else "double_bit"
        yield "hw.gpu.retired_pages", {"error.subtype": kind}, amount
    elif full == "fabric/state" and value not in ("Completed", "N/A", ""):
        yield "hw.gpu.fabric.unready", {"hw.gpu.condition.detail": f"state: {value}"}, 1.0
    elif full == "gpu recovery action" and value not in ("None", "N/A", ""):
        yield "hw.gpu.recovery_action", {"action": value}, 1.0
    elif (metric := _QUERY.get(full)) and (amount := number(value)) is not None:
        yield metric, {}, amount


def _ecc(leaf: str) -> dict[str, str] | None:
    if "correctable" not in leaf:
        return None
    memory = leaf.split()[0]
    single = "uncorrectable" not in leaf
    return {
        "error.type": "corrected" if single else "uncorrected",
        "error.subtype": "single_bit" if single else "double_bit",
        "hw.gpu.memory.kind": memory,
        "detail": leaf,
    }


#: How the output of `nvidia-smi dmon`, and of `dcgmi dmon`, begins: the names of its columns, then their units.
DMON_BEGINS = re2.compile(
    rb"^# *(?:(?:Date +Time +)?gpu +(?:[a-z]+ +)*[a-z]+ *\r?\n# *(?:YYYYMMDD +HH:MM:SS +)?Idx +"
    rb"|Entity +(?:[A-Z0-9]+ +)*[A-Z0-9]+ *\r?\n *ID\b)"
)


def read_dmon(stream: Stream, clock: Clock, counters: Counters) -> Iterator[Point]:
    """`nvidia-smi dmon` and `dcgmi dmon`.

    Without the option that adds times, the rounds are a second apart and end with the bundle.
    """
    data = whole.content(stream, MAX_BYTES)
    counters.bytes_read += len(data)
    columns: list[str] = []
    rows: list[tuple[dict[str, str], int, Source]] = []
    seen: set[str] = set()
    rounds = offset = 0
    for line, raw in enumerate(data.split(b"\n"), 1):
        here, offset = offset, offset + len(raw) + 1
        text = raw.decode("utf-8", "replace").strip()
        if text.startswith("#"):
            words = text.lstrip("# ").lower().split()
            columns = ["gpu", *words[1:]] if words[:1] == ["entity"] else words if "gpu" in words else columns
            continue
        cells = text.removeprefix("GPU ").split()
        if not columns or len(cells) != len(columns):
            counters.lines_unparsed += bool(text)
            continue
        row = dict(zip(columns, cells, strict=True))
        if row["gpu"] in seen:
            rounds, seen = rounds + 1, set()
        seen.add(row["gpu"])
        rows.append((row, rounds, Source(stream.path, here, line, len(raw))))
    for row, place, source in rows:
        when = clock.latest - (rounds - place) * _ROUND
        stamp = (
            stamps.find(f"{_dashed(row['date'])}T{row['time']}".encode()) if {"date", "time"} <= row.keys() else None
        )
        if stamp is not None:
            when = stamp.resolve(clock.latest)
        labels = {**host_of(stream), "hw.gpu.index": row["gpu"]}
        for name, cell in row.items():
            if name in _DMON and (amount := number(cell)) is not None:
                metric, more, factor = _DMON[name]
                counters.records += 1
                yield Point(
                    name=metric, labels={**labels, **more}, value=amount * factor, time=when, source=source,
                    inferred=stamp is None, declared="gauge" if metric == "hw.gpu.io" else "",
                )  # fmt: skip
            elif name in _DCGMI and (amount := number(cell)) is not None:
                counters.records += 1
                yield Point(
                    name=_DCGMI[name], labels=labels, value=amount, time=when, source=source, inferred=stamp is None
                )


def _dashed(date: str) -> str:
    """`20261201` as `2026-12-01`."""
    return f"{date[:4]}-{date[4:6]}-{date[6:]}"


def host_of(stream: Stream) -> dict[str, str]:
    host = stream.resource.get("host.name")
    return {"host.name": host} if isinstance(host, str) else {}
