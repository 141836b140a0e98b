"""Tables of GPUs with separated columns, as metric points.

`nvidia-smi --query-gpu=… --format=csv`, with and without a header, gets the names of `smi`. What exporters and
notebooks write of DCGM keeps DCGM's names, which the recipes of the metrics layer know: a column for each field, a
column for each field of each GPU, or a row for each value.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import re2

from tracecore.signals import stamps, whole
from tracecore.signals.metrics.point import Point
from tracecore.signals.nvidia.smi import MAX_BYTES, REASONS, bus_id, host_of, number
from tracecore.signals.record import Source
from tracecore.signals.stream import Clock, Counters, Stream

_BITS = {
    0x1: "idle", 0x2: "applications_clocks", 0x4: "power", 0x8: "slowdown_hardware", 0x10: "sync_boost",
    0x20: "thermal_software", 0x40: "thermal_hardware", 0x80: "power_brake",
}  # fmt: skip
_NAMES = {
    "idle": "gpu_idle", "applications_clocks": "applications_clocks_setting", "power": "sw_power_cap",
    "slowdown_hardware": "hw_slowdown", "sync_boost": "sync_boost", "thermal_software": "sw_thermal_slowdown",
    "thermal_hardware": "hw_thermal_slowdown", "power_brake": "hw_power_brake_slowdown",
}  # fmt: skip
#: Column → name.
_CSV = {
    "temperature.gpu": "hw.gpu.temperature",
    "temperature.memory": "hw.gpu.memory.temperature",
    "clocks.current.sm": "hw.gpu.clock.sm",
    "clocks.sm": "hw.gpu.clock.sm",
    "clocks.max.sm": "hw.gpu.clock.sm.max",
    "clocks.current.memory": "hw.gpu.clock.memory",
    "clocks.mem": "hw.gpu.clock.memory",
    "power.draw": "hw.gpu.power",
    "power.draw.instant": "hw.gpu.power",
    "power.limit": "hw.gpu.power.limit",
    "enforced.power.limit": "hw.gpu.power.limit",
    "memory.total": "hw.gpu.memory.total",
    "memory.used": "hw.gpu.memory.used",
    "memory.free": "hw.gpu.memory.free",
    "utilization.gpu": "hw.gpu.utilization",
    "pcie.link.gen.current": "hw.gpu.pcie.link.generation",
    "pcie.link.gen.gpucurrent": "hw.gpu.pcie.link.generation",
    "pcie.link.gen.max": "hw.gpu.pcie.link.generation.max",
    "pcie.link.width.current": "hw.gpu.pcie.link.width",
    "pcie.link.width.max": "hw.gpu.pcie.link.width.max",
}
#: A column that a script made of NVML's PCIe throughput, with its unit in the name or behind it.
_PCIE_RATE = re2.compile(
    r"^pcie[ _./]?(?P<way>rx|tx)(?:[ _.](?:throughput|bandwidth|rate))?(?:[ _.](?P<scale>[kmg])i?b(?:ytes)?"
    r"(?:ps|/s|[ _.]?s|[ _.]?per[ _.]?s(?:ec(?:ond)?)?))?$"
)
_PCIE_UNIT = re2.compile(r"(?i)^(?P<scale>[kmg])i?b(?:/s|ps)$")
_SCALES = {"k": 1e3, "m": 1e6, "g": 1e9}
_WAYS = {"rx": "receive", "tx": "transmit"}
#: Other names of columns that tables have which a script or an exporter wrote.
_CSV_INDEX = ("index", "gpu", "gpu_index", "gpu_id", "gpu index", "gpuid", "minor_number", "device")
_CSV_HOST = ("hostname", "host", "node", "nodename", "node_name", "exported_hostname", "instance")
_CSV_TIME = ("timestamp", "time", "datetime", "ts", "@timestamp", "timestamp_utc", "time_utc", "utc", "date")
_CSV_BUS = ("pci.bus_id", "gpu_bus_id", "pci_bus_id", "bus_id", "pcibusid", "pci_busid", "pci bus id")
_CSV_UUID = ("uuid", "gpu_uuid", "gpu uuid")
_CSV_MODEL = ("name", "modelname", "model_name", "gpu_name")
#: Columns of a table that has a row for each value.
_CSV_METRIC = ("metric", "metric_name", "__name__", "field", "field_name")
_CSV_VALUE = ("value", "metric_value")
#: A field of DCGM, and the labels or the number of the GPU that a wide table puts beside it.
_DCGM = re2.compile(
    r"(?i)^(?:gpu[ _.-]?(?P<before>\d{1,3})[ _.:/-]+)?(?P<field>DCGM_(?:FI|EXP)_[A-Z0-9_]*?[A-Z0-9])"
    r"(?:\{(?P<labels>[^{}]*)\}|[ _.:/(\[-]*gpu[ _.:=-]?(?P<after>\d{1,3})[)\]]?"
    r"|[.:/@(\[ -]+(?P<number>\d{1,3})[)\]]?)?(?: [(\[][^)\]]*[)\]])?$"
)
_LABEL = re2.compile(r"(\w+)=\"([^\"]*)\"")
#: A number in base 16, or in base 10.
_PRINTED = re2.compile(r"^(?:0[xX]([0-9a-fA-F]{1,16})|(-?\d+(?:\.\d*)?(?:[eE][+-]?\d{1,3})?))")
#: How names of GPUs are written in a column of their numbers.
_NUMBERED = re2.compile(r"(?i)^(?:gpu|nvidia)?[ _-]?(\d{1,3})$")
#: Cells of a GPU that is off the bus, and of one that does not answer as it should.
_LOST = frozenset({"[gpu is lost]", "gpu is lost"})
_BROKEN = frozenset({"err!", "[gpu requires reset]"})
#: Of such cells one alone may be a reading that this kind of GPU does not have.
_UNKNOWN = frozenset({"[unknown error]", "unknown error"})
#: Cells that show a row to be about a GPU, where no header says so.
_MODEL = re2.compile(r"^(?:NVIDIA|Tesla|Quadro|GeForce) [A-Z0-9][\w ./()-]{1,48}$")
_UUID = re2.compile(r"^GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_FULL_BUS = re2.compile(r"^[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]$")
#: One of these is in such a row: a bundle may have 100,000 files, and looking for them costs less.
_SIGNS = (b"NVIDIA ", b"GPU-", b"Tesla ", b"Quadro ", b"GeForce ", b":00.0")
#: The options that say which columns a table without a header has, and whether its numbers have units.
_ASKED = re2.compile(r"--query-gpu[= ][\"']?([a-z][\w.]*(?:,[a-z][\w.]*)*)")
_UNITS = {"memory": "MiB", "utilization": "%"}


class _Column(msgspec.Struct, frozen=True):
    """A column of a table.

    Args:
        name: in small letters, without unit and labels.
        unit: as the header writes it.
        labels: whose its values are, where the header of a wide table says so.
    """

    name: str
    unit: str = ""
    labels: dict[str, str] = {}


def begins_with_rows(start: bytes, head: bytes) -> bool:
    """Return whether a text begins with rows of GPUs without a header, or such a table below its command.

    Args:
        start: the text below the command.
        head: the text as it is.
    """
    if not any(word in start[:4096] for word in _SIGNS) and b"--query-gpu" not in head[:4096]:
        return False
    lines = [line for line in start[:4096].split(b"\n")[:4] if b"," in line][:3]
    if not lines or b"," not in start.split(b"\n", 1)[0]:
        return False
    rows = [_cells(line) for line in lines[: max(len(lines) - 1, 1)]]
    if len(set(map(len, rows))) > 1 or len(rows[0]) < 2:
        return False
    if (asked := _asked(head[: len(head) - len(start)].decode("utf-8", "replace"))) is not None:
        return len(asked) == len(rows[0])
    return all(any(_FULL_BUS.match(c) or _UUID.match(c) or _MODEL.match(c) for c in row) for row in rows)


def begins_with_fields(start: bytes, head: bytes) -> bool:
    """Return whether a text begins with the header of a table of DCGM's fields.

    Args:
        start: the text below the command.
        head: the text as it is.
    """
    first = start.split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    if first.startswith("#") and not first.lower().startswith(("#timestamp", "# timestamp", "#time", "# time")):
        return False
    names = [_field(cell)[0] for cell in _split(first, _delimiter(first))]
    if len(names) < 2 or (names[0].startswith("dcgm_") and len(names) < 3):
        return False
    if any(name.startswith("dcgm_") for name in names):
        return any(name in known for name in names for known in (_CSV_TIME, _CSV_INDEX, _CSV_BUS, _CSV_UUID))
    long = any(name in _CSV_METRIC for name in names) and any(name in _CSV_VALUE for name in names)
    return long and b"DCGM_FI_" in head[:4096]


def _delimiter(header: str) -> str:
    """Return what separates the columns of a table, by its header."""
    return max(",\t;", key=header.count)


def _split(line: str, delimiter: str) -> list[str]:
    """Return the cells of a line; none if it is no line of a table."""
    try:
        cells = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        return []
    return [cell.strip() for cell in cells]


def _field(cell: str) -> tuple[str, dict[str, str]]:
    """Return the name of a column, and the labels that its header has."""
    text = cell.strip().lstrip("#\ufeff").strip()
    if (match := _DCGM.match(text)) is None:
        return text.lower(), {}
    labels = {name.lower(): value for name, value in _LABEL.findall(match["labels"] or "")}
    if number := match["before"] or match["after"] or match["number"]:
        labels["gpu"] = number
    return match["field"].lower(), labels


def _cells(line: bytes) -> list[str]:
    return [cell.strip() for cell in line.decode("utf-8", "replace").strip().split(",")]


def _asked(command: str) -> list[_Column] | None:
    """Return the columns that a command asks for, as a header would have them; None where it asks for none."""
    match = _ASKED.search(command)
    if match is None:
        return None
    bare = "nounits" in command
    names = match.group(1).split(",")
    return [_Column(name, _UNITS.get(name.partition(".")[0], "") if bare else "") for name in names]


def _guessed(cells: Sequence[str]) -> list[_Column]:
    """Return a header for a row without one: what tells by itself what it is. A bare number may be anything."""
    names: list[str] = []
    for cell in cells:
        name = "pci.bus_id" if _FULL_BUS.match(cell) else "uuid" if _UUID.match(cell) else ""
        if not name and _MODEL.match(cell):
            name = "name"
        if not name and "/" in cell[:8] and stamps.find(cell.encode()) is not None:
            name = "timestamp"
        names.append(name if name not in names else "")
    if not names[0] and cells[0].isdigit() and int(cells[0]) < 64 and any(names[1:3]):
        names[0] = "index"
    return [_Column(name or f"column {place}") for place, name in enumerate(names)]


def read_csv(stream: Stream, clock: Clock, counters: Counters) -> Iterator[Point]:
    """A table of GPUs with one header or several alike; `nvidia-smi` may be told to leave it out.

    Without a header the command above the table says what its columns are, or else what they look like.
    """
    data = whole.content(stream, MAX_BYTES)
    counters.bytes_read += len(data)
    base = host_of(stream)
    header: list[_Column] = []
    delimiter = ","
    offset = 0
    latest = clock.latest
    for line, raw in enumerate(data.split(b"\n"), 1):
        here, offset = offset, offset + len(raw) + 1
        text = raw.decode("utf-8", "replace").strip("\r ") if b"\t" in raw else raw.decode("utf-8", "replace").strip()
        if not text.strip():
            continue
        if (asked := _asked(text)) is not None:
            header = asked
            continue
        if not header:
            delimiter = _delimiter(text)
        cells = _split(text, delimiter)
        if not header and begins_with_rows(raw, b""):
            header = _guessed(cells)
        elif not header or (cells and header[0].name and _column(cells[0]).name == header[0].name):
            header = [_column(cell) for cell in cells]
            continue
        if len(cells) != len(header):
            counters.lines_unparsed += 1  # the last line of a file being written
            continue
        row = {column.name: (cell, column.unit) for column, cell in zip(header, cells, strict=True)}
        labels, when = {**base, **_identity({name: cell for name, (cell, _) in row.items()})}, latest
        told = next((row[name][0] for name in _CSV_TIME if name in row), "")
        stamp = stamps.find(told.encode()) if told else None
        if stamp is not None:
            # Rows of a later look that have no time are nearer to these than to the end of the bundle.
            when = latest = stamp.resolve(clock.latest)
        source = Source(stream.path, here, line, len(raw))
        measured = _dcgm_fields(header, cells, row)
        for metric, more, amount in _csv_fields(row) if measured is None else measured:
            counters.records += 1
            yield Point(
                name=metric, labels={**labels, **more}, value=amount, time=when, source=source, inferred=stamp is None
            )


def _column(cell: str) -> _Column:
    name, labels = _field(cell)
    if not name.startswith("dcgm_"):
        name, _, unit = name.partition(" [")
        return _Column(name.strip(), cell.partition(" [")[2].strip().rstrip("]") if unit else "")
    return _Column(name, labels=labels)


def _identity(row: Mapping[str, str]) -> dict[str, str]:
    """Return who a row is about, as far as its cells say: machine and GPU."""
    found: dict[str, str] = {}
    hosts = (row[name] for name in _CSV_HOST if row.get(name))
    if host := next((host for host in hosts if not host.isdigit()), ""):
        found["host.name"] = host.rpartition(":")[0] or host
    for names, label in ((_CSV_INDEX, "hw.gpu.index"), (_CSV_UUID, "gpu.uuid"), (_CSV_MODEL, "gpu.model")):
        if cell := next((row[name] for name in names if row.get(name)), ""):
            found[label] = cell
    for cell in (found.get("hw.gpu.index", ""), *(row.get(name, "") for name in _CSV_BUS)):
        if bus := bus_id(cell):
            found["gpu.id"] = bus
    index = found.pop("hw.gpu.index", "")
    if match := _NUMBERED.match(index):
        found["hw.gpu.index"] = match[1]
    elif _UUID.match(index):
        found["gpu.uuid"] = index
    return found


def _dcgm_fields(
    header: Sequence[_Column], cells: Sequence[str], row: Mapping[str, tuple[str, str]]
) -> list[tuple[str, dict[str, str], float]] | None:
    """Return the values of a row of DCGM's fields, by their own names; None where the table has none of them."""
    fields = [(column, cell) for column, cell in zip(header, cells, strict=True) if column.name.startswith("dcgm_")]
    told = next((row[name][0] for name in _CSV_METRIC if name in row), "")
    if told.upper().startswith("DCGM_"):
        fields.append((_column(told), next((row[name][0] for name in _CSV_VALUE if name in row), "")))
    elif not fields:
        return None
    measured = ((column, _amount(cell)) for column, cell in fields)
    return [
        (column.name.upper(), _identity(column.labels), amount) for column, amount in measured if amount is not None
    ]


def _amount(cell: str) -> float | None:
    """Return a number as printed, also in base 16, whatever unit stands behind it; None where nothing was measured."""
    match = _PRINTED.match(cell)
    if match is None:
        return None
    return float(int(match[1], 16)) if match[1] else float(match[2])


def _pcie_rates(row: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, dict[str, str], float]]:
    for name, (cell, unit) in row.items():
        if not name.startswith("pcie") or (match := _PCIE_RATE.match(name)) is None:
            continue
        told = match if match["scale"] else _PCIE_UNIT.match(unit)
        if told is not None and (amount := _amount(cell)) is not None:
            yield "hw.gpu.io", {"network.io.direction": _WAYS[match["way"]]}, amount * _SCALES[told["scale"].lower()]


def _csv_fields(row: dict[str, tuple[str, str]]) -> Iterator[tuple[str, dict[str, str], float]]:
    shown = [cell.lower() for cell, _ in row.values()]
    lost = not _LOST.isdisjoint(shown)
    broken = not lost and (not _BROKEN.isdisjoint(shown) or sum(cell in _UNKNOWN for cell in shown) > 1)
    if lost:
        yield "hw.gpu.lost", {}, 1.0
    rates = list(_pcie_rates(row))
    yield from rates
    if broken or (not rates and row.keys().isdisjoint(_CSV)):
        # Of a table that has nothing but the names of GPUs, the names are of use.
        yield "hw.gpu.unreadable", {}, float(broken)
    for name, (cell, unit) in row.items():
        if metric := _CSV.get(name):
            if (amount := number(cell, unit)) is not None:
                yield metric, {}, amount
        elif name in ("clocks_event_reasons.active", "clocks_throttle_reasons.active") and cell.startswith("0x"):
            try:
                mask = int(cell, 16)
            except ValueError:
                continue
            for bit, reason in _BITS.items():
                if f"{name.split('.')[0]}.{_NAMES[reason]}" not in row:
                    yield "hw.gpu.throttle.active", {"hw.gpu.throttle.reason": reason}, float(bool(mask & bit))
        elif name.startswith(("clocks_event_reasons.", "clocks_throttle_reasons.")):
            reason_name = REASONS.get(name.split(".", 1)[1].replace("_", " "))
            if reason_name and cell in ("Active", "Not Active"):
                yield "hw.gpu.throttle.active", {"hw.gpu.throttle.reason": reason_name}, float(cell == "Active")
        elif name == "remapped_rows.failure" and cell in ("Yes", "No", "0", "1"):
            yield "hw.gpu.remapped_rows", {"kind": "failure"}, float(cell in ("Yes", "1"))
        elif name in ("remapped_rows.pending", "retired_pages.pending") and cell in ("Yes", "No", "0", "1"):
            metric = f"hw.gpu.{name.partition('.')[0]}"
            yield metric, {"kind": "pending"}, float(cell in ("Yes", "1"))
        elif name.startswith("ecc.errors.") and (amount := number(cell)) is not None:
            parts = name.split(".")
            if len(parts) == 5:
                single = parts[2] == "corrected"
                yield (
                    "hw.errors",
                    {
                        "error.type": parts[2],
                        "error.subtype": "single_bit" if single else "double_bit",
                        "error.persistence": parts[3],
                        "hw.gpu.memory.kind": parts[4],
                    },
                    amount,
                )
                if parts[2:] == ["uncorrected", "volatile", "total"]:
                    yield "hw.gpu.ecc.uncorrected", {}, amount
