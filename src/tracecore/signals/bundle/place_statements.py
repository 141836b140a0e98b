"""Statements in files about the places of ranks: tables of ranks and machines, a launcher's list of hosts, `ps`,
`nvidia-smi`, py-spy, and lines in which a process gives its own rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from tracecore.signals.bundle.formats import FORMATS
from tracecore.signals.bundle.machines import is_name
from tracecore.signals.bundle.process_ranks import of_launcher
from tracecore.signals.stream import Stream

#: Bytes at the beginning of a log that are searched for statements of processes, and the size of a table.
EARLY: Final = 8 * 1024
TABLE: Final = 64 * 1024
#: Bytes at the beginning of a file by which a table is recognised.
_LOOKED_AT: Final = 1024
#: If the first lines are all longer, the file is no table but a program's log.
_WIDE: Final = 100
#: Words of tables with long lines: of processes, and of GPUs.
_OF_WIDE: Final = (b"PID", b"bus_id")
#: Characters of the lines between the rows of a table.
_RULERS: Final = frozenset("-=+| ")
#: Limit of the ranks in one table.
_MOST: Final = 1 << 17
#: Limit of the statements that are kept of a bundle; a row of a table counts once for each of its ranks.
ROOM: Final = 1 << 19
#: The kind of value for each name of a column or of a pair in a line.
_KEYS: Final = {name: kind for kind, names in FORMATS.columns.items() for name in names}
_NOBODY: Final = frozenset(FORMATS.names["nobody"])
_GROUPS: Final = frozenset(FORMATS.names["groups_of_ranks"])
_NUMBERS: Final = frozenset({"rank", "local", "pid", "parent", "number"})


#: Columns of a list of pods. In such a list the column `name` has the names of pods.
_OF_PODS: Final = frozenset({"ready", "status", "phase", "pod_ip", "podip", "restarts"})
#: Columns with the number of a task of srun, which is a rank if a machine has several.
_TASKS: Final = frozenset({"task", "taskid", "task_id", "procid"})
#: Columns with a command, which may have blanks.
_COMMANDS: Final = frozenset({"cmd", "command", "args"})
#: The kind of value for each environment variable of a process.
_VARIABLES: Final = {name: kind for kind, names in FORMATS.variables.items() for name in names}
#: Limit of the ranks on one machine.
SLOTS: Final = 64


class Told(msgspec.Struct, frozen=True):
    """One statement: names that belong to the same process, or one row of a table of machines.

    Args:
        ranks: all ranks of the machine, by local rank.
        slots: the number of ranks of the machine; the first machine of the table has the lowest ranks.
        table: the path of the table of this row; the rows of a table are used together or not at all.
        group: the size of the communicator in which `rank` is counted.
        number: the number of `gpu` on the machine.
        own: the statement is about the process that wrote the file.
    """

    rank: int | None = None
    local: int | None = None
    node: str = ""
    pid: int | None = None
    parent: int | None = None
    pod: str = ""
    gpu: str = ""
    ranks: tuple[int, ...] = ()
    slots: int = 0
    table: str = ""
    group: int = 0
    number: int | None = None
    own: bool = False


class Statements:
    """The statements of all files of a bundle, each with its file; at most `ROOM`.

    Attributes:
        left_out: the first file that had too many statements; empty if there is none.
    """

    def __init__(self) -> None:
        self.told: list[tuple[Stream, Told]] = []
        self.left_out = ""
        self._room = ROOM

    def add(self, stream: Stream, told: Sequence[Told]) -> None:
        """Add the statements of a file, if there is room for all of them."""
        needed = sum(1 + len(one.ranks) + one.slots for one in told)
        if needed <= self._room:
            self.told += [(stream, one) for one in told]
            self._room -= needed
        elif not self.left_out:
            self.left_out = stream.path


def said(stream: Stream, head: bytes, tail: bytes, name: str, *, complete: bool) -> list[Told]:
    """Return the statements at both ends of a file about the places of ranks."""
    expressions = FORMATS.expressions
    found: list[Told] = []
    if stream.layer == "kernel":
        if b" ppid:" in head or b" ppid:" in tail:
            for pid, parent in (*expressions["kernel_task"].findall(head), *expressions["kernel_task"].findall(tail)):
                found.append(Told(pid=int(pid), parent=int(parent)))
        return found
    if stream.layer == "kubernetes" and b"Successfully assigned " in head:
        found += [Told(pod=_text(pod), node=_text(node)) for pod, node in expressions["assigned"].findall(head)]
    if stream.format == "kubernetes_describe":
        if b" RANK: " in head and expressions["described_several"].search(head) is None:
            for pod, rank in expressions["described_rank"].findall(head):
                found.append(Told(pod=_text(pod), rank=int(rank)))
        found += [Told(pod=_text(pod), node=_text(node)) for pod, node in expressions["described_pod"].findall(head)]
        found += _of_described(head)
    if complete and len(head) <= TABLE and stream.format in ("text", "nvidia_csv"):
        found += _of_tables(head, name, stream.path)
    if stream.format == "nvidia_table":
        return found + list(_of_nvidia(head))
    if stream.layer != "stdout":
        return found
    early = head[:EARLY]
    if b" busId " in head:
        found += _of_nccl(head)
    elif b"] NCCL " in early:
        speakers = set(expressions["nccl_speaker"].findall(early))
        if len(speakers) == 1:
            node, pid = speakers.pop()
            found.append(Told(node=_text(node), pid=int(pid), own=True))
    if b", pci bus id: " in head:
        gpus = {_bus(_text(bus)) for bus in expressions["tensorflow_gpu"].findall(head)}
        found += [Told(gpu=gpu, own=True) for gpu in gpus if len(gpus) == 1]
    if b"spawned with command" in early:
        for node, pid, local in expressions["spawned"].findall(early):
            found.append(Told(node=_text(node), pid=int(pid), local=int(local)))
    if head.startswith(b"Process ") or b"\nProcess " in early:
        found += [Told(pid=int(pid), own=True) for pid in expressions["spied"].findall(early)]
    if b"srun: error: " in head or b"srun: error: " in tail:
        found += _of_srun(head, tail)
    end = tail or head
    if b"> failed" in end or b" peer " in end:
        found += [Told(node=_text(node)) for node in expressions["lost_peer"].findall(end)]
    if b" (local_rank: " in end:
        for node, rank, local, pid in expressions["table_row"].findall(end):
            found.append(Told(node=_text(node), rank=int(rank), local=int(local), pid=int(pid)))
    if b"global_rank_mapping" in head[: 2 * EARLY]:
        found += _of_deepspeed(head, stream.path)
    if b":" in early and (match := FORMATS.expressions["host_list"].search(early)):
        found += _slots(FORMATS.expressions["host_slots"].findall(match.group(1)), stream.path)
    if b"map" in early and (match := expressions["host_map"].search(early)):
        found += _of_map(*match.groups())
    found += _of_lines(early)
    found += _of_environments(head if complete else early)
    return found


def _text(word: bytes) -> str:
    return word.decode("utf-8", "replace")


def _of_described(head: bytes) -> list[Told]:
    """Return the ranks of the pod that `kubectl describe` shows, from its environment; [] if it shows several."""
    names, numbers, counts = (
        set(FORMATS.expressions[name].findall(head))
        for name in ("described_name", "described_number", "described_each")
    )
    if not len(names) == len(numbers) == len(counts) == 1:
        return []
    pod, number, each = _text(names.pop()), int(numbers.pop()), int(counts.pop())
    if not 0 < each <= SLOTS:
        return []
    return [Told(pod=pod, rank=number * each + local, local=local) for local in range(each)]


def _of_srun(head: bytes, tail: bytes) -> Iterator[Told]:
    """Return the tasks of srun as ranks, if a machine has several and no other launcher starts the ranks."""
    if any(word in ends for word in (b"torchrun", b"torch.distributed.run", b"elastic") for ends in (head, tail)):
        return
    rows = {row for ends in (head, tail) for row in FORMATS.expressions["srun_tasks"].findall(ends)}
    tasks = [(_text(node), _numbers(numbers)) for node, numbers in sorted(rows)]
    if any(len(numbers) > 1 for _, numbers in tasks):
        for node, numbers in tasks:
            yield from (Told(rank=number, node=node) for number in numbers)


def _of_nccl(head: bytes) -> Iterator[Told]:
    for host, pid, rank, size, bus in FORMATS.expressions["nccl_rank"].findall(head):
        number = int(bus, 16)
        gpu = f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"
        yield Told(node=_text(host), pid=int(pid), rank=int(rank), gpu=gpu, group=int(size))


def _of_nvidia(head: bytes) -> Iterator[Told]:
    """Return the processes in the table of `nvidia-smi`, with the bus ids of their GPUs."""
    buses = {int(number): _text(bus) for number, bus in FORMATS.expressions["nvidia_row"].findall(head)}
    for number, pid in FORMATS.expressions["nvidia_process"].findall(head):
        if int(number) in buses:
            yield Told(pid=int(pid), gpu=_bus(buses[int(number)]))


def _bus(text: str) -> str:
    """Return a bus id in the form that facts use; "" for anything else."""
    match = FORMATS.expressions["bus_id"].match(text.encode())
    if match is None:
        return ""
    domain, rest = match.groups()
    return f"{int(domain or b'0', 16):04x}:{_text(rest).lower()}"


def _of_deepspeed(head: bytes, path: str) -> Iterator[Told]:
    """Return the ranks of each machine from the list of DeepSpeed's launcher."""
    mappings = {match.group(1) for match in FORMATS.expressions["mapped_ranks"].finditer(head)}
    if len(mappings) == 1:
        for node, ranks in FORMATS.expressions["mapped_machine"].findall(mappings.pop()):
            yield Told(node=_text(node), ranks=_numbers(ranks), table=path)


def _of_map(ranks: bytes, world: bytes, rows: bytes) -> list[Told]:
    """Return the machines of a program's map of its ranks. Its numbers may be those of machines, unless it has all."""
    mapped = {int(rank): _text(node) for rank, node in FORMATS.expressions["mapped_rank"].findall(rows)}
    if not ranks and len(mapped) != int(world):
        return []
    return [Told(rank=rank, node=node) for rank, node in mapped.items()]


def _slots(machines: Iterable[tuple[bytes, bytes]], path: str) -> list[Told]:
    """Return the rows of a table of machines, in the order of their ranks, each with the number of ranks."""
    counted = [(_text(node), int(count)) for node, count in machines]
    if len({node for node, _ in counted}) != len(counted) or sum(count for _, count in counted) > _MOST:
        return []
    return [Told(node=node, slots=count, table=path) for node, count in counted if count]


def _of_environments(head: bytes) -> list[Told]:
    """Return statements from the environment of one process, or of several under titles with machines or pods."""
    if b"RANK=" not in head and b"PROCID=" not in head:
        return []
    found: list[Told] = []
    place, held = "", dict[str, str]()
    for match in FORMATS.expressions["own_variable"].finditer(head):
        title, name, value = map(_text, match.groups(b""))
        if title:
            found += _of_environment(place, held)
            place, held = title, {}
        elif held.setdefault(name, value) != value:
            return []  # the lines are of several processes and cannot be told apart
    return [*found, *_of_environment(place, held)] if len(found) < _MOST else []


def _of_environment(place: str, held: dict[str, str]) -> Iterator[Told]:
    """Return statements from environment variables, about the process or all processes of its machine or pod."""
    named = {kind: value for name, value in held.items() if (kind := _VARIABLES.get(name))}
    node, pod = named.get("node", "") or place, named.get("pod", "")
    first, each = named.get("node_rank", ""), named.get("each", "")
    devices = held.get("CUDA_VISIBLE_DEVICES", "").split(",")
    devices = devices if devices[0].startswith("GPU-") else []
    if (rank := named.get("rank", "")).isdigit():
        local = named.get("local", "")
        yield Told(rank=int(rank), local=int(local) if local.isdigit() else None, node=node, pod=pod)
    elif (node or pod) and first.isdigit() and each.isdigit() and 0 < int(each) <= SLOTS:
        for number in range(int(each)):
            gpu = devices[number] if len(devices) == int(each) else ""
            yield Told(rank=int(first) * int(each) + number, local=number, node=node, pod=pod, gpu=gpu)


def _of_lines(early: bytes) -> Iterator[Told]:
    """Return statements from lines in which a process gives its rank and its machine or number as `name=value`."""
    low = early.lower()
    if not any(word in low for word in FORMATS.words["says_where"]):
        return
    for line, small in zip(early.split(b"\n"), low.split(b"\n"), strict=True):
        if not any(word in small for word in FORMATS.words["says_where"]):
            continue
        pairs = FORMATS.expressions["pair"].findall(line)
        keys = [_text(key).lower().replace(" ", "_").replace("-", "_") for key, _ in pairs]
        own = not {"rank", "global_rank", "world_rank"} & set(keys)
        if own and not {"node", "pid"} <= {_KEYS.get(key) for key in keys}:
            continue
        rest = FORMATS.expressions["pair"].sub(b" ", line)
        # A line about a connection names the machine at the other end.
        if FORMATS.expressions["about_another"].search(rest) or any("peer" in key or "remote" in key for key in keys):
            continue
        if (told := _told(zip(keys, (_text(value) for _, value in pairs), strict=True))) is not None:
            yield msgspec.structs.replace(told, own=own)


def _told(pairs: Iterable[tuple[str, str]]) -> Told | None:
    """Return a statement made of pairs; None if two pairs have the same kind, or fewer than two are known."""
    held: dict[str, str | int] = {}
    for name, value in pairs:
        kind = _KEYS.get(name)
        if kind is None:
            continue
        if kind in _NUMBERS:
            if not value.isdigit() or len(value) > 9 or kind in held:
                return None
            held[kind] = int(value)
        elif not value or value.lower() in _NOBODY or value == "<none>":
            continue
        elif kind == "gpu":
            held[kind] = _bus(value)
        elif kind in held:
            return None
        else:
            held[kind] = value
    held = {kind: value for kind, value in held.items() if value != ""}
    return msgspec.convert(held, Told) if len(held) > 1 else None


def _of_tables(text: bytes, name: str, path: str) -> list[Told]:
    """Return the statements of a table, or of one table for each machine under titles with the machines' names."""
    title = FORMATS.expressions["machine_title"]
    begin = text.lstrip().split(b"\n", 1)[0]
    if title.match(begin.strip()) is None:
        return _of_table(text, name, path)
    machines: dict[str, list[bytes]] = {}
    rows: list[bytes] = []
    for line in text.split(b"\n"):
        if match := title.match(line.strip()):
            rows = machines.setdefault(_text(match.group(1)), [])
        else:
            rows.append(line)
    # A table that names machines itself is of several, and the title a comment.
    tables = {node: _of_table(b"\n".join(rows), name, path) for node, rows in machines.items()}
    found = [
        msgspec.structs.replace(one, node=node)
        for node, table in tables.items()
        for one in table
        if not (one.node or one.ranks or one.slots)
    ]
    return found or _of_table(text, name, path)


def _of_table(text: bytes, name: str, path: str) -> list[Told]:
    """Return the statements of a table. Try the first lines before the whole file, because most files are no table."""
    found: list[Told] = []
    for begin in (text[:_LOOKED_AT], text) if len(text) > _LOOKED_AT else (text,):
        rows = [line.strip() for line in begin.split(b"\n")]
        if min((len(row) for row in rows[:4] if row), default=0) > _WIDE and not any(
            word in begin for word in _OF_WIDE
        ):
            return []
        lines = [row.decode("utf-8", "replace") for row in (rows if begin is text else rows[:-1])]
        lines = [line for line in lines if line and line[0] not in "#$" and not _RULERS.issuperset(line)]
        if not lines:
            return []
        found = _of_columns(lines) + _of_commands(lines)
        if not found and rows[0].startswith(b"#"):
            found = _of_columns([rows[0].decode("utf-8", "replace").lstrip("# "), *lines])
        found = found or _of_machines(lines, name, path, part=begin is not text) or _of_rows(lines)
        if not found:
            return []
    return found


def _cells(line: str) -> list[str]:
    for mark in ("\t", "|", ","):
        if mark in line:
            return [cell.strip() for cell in line.strip("|").split(mark)]
    return line.split()


def _of_columns(lines: Sequence[str]) -> list[Told]:
    """Return the statements of a table whose first line names its columns."""
    keys = [cell.lower().replace(" ", "_").replace("-", "_") for cell in _cells(lines[0])]
    if "name" in keys and "node" in keys and not _OF_PODS.isdisjoint(keys):
        keys[keys.index("name")] = "pod"
    if "pod" in keys and "idx" in keys:
        keys[keys.index("idx")] = "index"
    tasks = [place for place, key in enumerate(keys) if key in _TASKS]
    of_tasks = len(tasks) == 1 and not any(_KEYS.get(key) == "rank" for key in keys)
    if of_tasks:
        keys[tasks[0]] = "rank"
    kinds = [_KEYS.get(key) for key in keys]
    held = {kind for kind in kinds if kind is not None}
    if any(character.isdigit() for key in keys for character in key):
        return []
    if len(held) < 2 or not held & {"rank", "local", "pod", "parent", "gpu"} or len(held) < sum(map(bool, kinds)):
        return []
    found: list[Told] = []
    if "," not in lines[0] and "\t" not in lines[0] and "|" not in lines[0]:
        # Cells may be empty or have blanks: `2 (5m ago)`. Then cut the line where the columns of the header begin.
        starts = [lines[0].index(cell) for cell in lines[0].split()]
        for line in lines[1:]:
            cells = line.split(None, len(keys) - 1) if keys[-1] in _COMMANDS else line.split()
            if len(cells) != len(keys):
                cells = [line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
                if not all(line[start - 1 : start] in ("", " ") for start in starts):
                    continue
            if (told := _told(zip(keys, (cell.partition(" ")[0] for cell in cells), strict=True))) is not None:
                found.append(told)
    else:
        for line in lines[1:]:
            cells = _cells(line)
            if len(cells) == len(keys) and (told := _told(zip(keys, cells, strict=True))) is not None:
                found.append(told)
    hosts = [told.node for told in found]
    # If each machine has one task, that task is a launcher and no rank.
    return [] if of_tasks and len(set(hosts)) == len(hosts) else found


def _of_machines(lines: Sequence[str], name: str, path: str, *, part: bool) -> list[Told]:
    """Return rows of machines with their ranks, or rows of a launcher's list of hosts with the number of ranks.

    Args:
        part: the lines are only the first ones, so ranks may be missing.
    """
    about = FORMATS.expressions["machines_file"].search(name.encode()) is not None
    slots = [match for line in lines if (match := FORMATS.expressions["slots"].match(line.encode()))]
    if slots and len(slots) == len(lines) and (about or not any(match.group(2) for match in slots)):
        return _slots([(match.group(1), match.group(2) or match.group(3)) for match in slots], path)
    if about and not part and len(set(lines)) < len(lines) and all(map(is_name, lines)):
        # PBS writes one line for each rank.
        return _slots([(node.encode(), b"%d" % lines.count(node)) for node in dict.fromkeys(lines)], path)
    found: list[tuple[str, tuple[int, ...], bool]] = []
    room = _MOST
    for line in lines:
        match = FORMATS.expressions["ranks_of_machine"].match(line.encode())
        if match is not None:
            node, word, numbers = match.group(1), match.group(2), match.group(3)
        elif (match := FORMATS.expressions["machine_of_ranks"].match(line.encode())) is not None:
            node, word, numbers = match.group(3), match.group(1), match.group(2)
        else:
            continue
        ranks = _numbers(numbers, room)
        room -= len(ranks)
        found.append((_text(node), ranks, bool(word) or "rank" in name.lower()))
    listed = [rank for _, ranks, _ in found for rank in ranks]
    whole = part or sorted(listed) == list(range(len(listed)))
    if not found or 2 * len(found) < len(lines) or not whole or len({node for node, _, _ in found}) != len(found):
        return []
    # Without the word `rank` a single number after a name may count anything, and a name may be any word.
    if not all(word or len(ranks) > 1 for _, ranks, word in found):
        return []
    spoken = len(found) > 1 and all((word or about) and node.lower() not in _GROUPS for node, _, word in found)
    if not spoken and not all(is_name(node) for node, _, _ in found):
        return []
    return [Told(node=node, ranks=ranks, table=path) for node, ranks, _ in found]


def _numbers(text: bytes, most: int = _MOST) -> tuple[int, ...]:
    """Return 0, 1, 2, 3, 8, 9 for `0-3,8 9`; () if there are more than `most`."""
    found: list[int] = []
    for part in FORMATS.expressions["range"].finditer(text):
        first, last = int(part.group(1)), int(part.group(2) or part.group(1))
        if not first <= last <= _MOST or last - first + len(found) >= most:
            return ()
        found += range(first, last + 1)
    return tuple(found)


def _of_rows(lines: Sequence[str]) -> list[Told]:
    """Return statements of rows without a header, all of one kind, as `200114 rank0 gpu-a` or `rank 3 pid 4711`."""
    for kind in ("row_of_process", "row_of_rank", "row_of_place", "row_of_pod", "row_of_task"):
        rows = [FORMATS.expressions[kind].match(line.encode()) for line in lines]
        matched = [row for row in rows if row is not None]
        if matched and 2 * len(matched) > len(rows) and len(rows) - len(matched) <= 2:
            groups = FORMATS.expressions[kind].groupindex
            names = [_text(name) for name in sorted(groups, key=groups.__getitem__)]
            found = [zip(names, map(_text, row.groups(b"")), strict=True) for row in matched]
            rows_told = [told for row in found if (told := _told(row)) is not None]
            if kind == "row_of_task":
                hosts = [told.node for told in rows_told]
                # If each machine has one task, that task is a launcher and no rank.
                return rows_told if all(map(is_name, hosts)) and len(set(hosts)) < len(hosts) else []
            return rows_told
    return []


def _of_commands(lines: Sequence[str]) -> list[Told]:
    """Return statements of rows of `ps` or `top` whose commands contain the rank of the process."""
    keys = [key for line in lines[:8] if "PID" in (key := line.split())]
    if not keys:
        return []
    at = keys[0].index("PID")
    found = []
    ranks = of_launcher("\n".join(lines).encode())
    for line in lines:
        cells = line.split(None, at + 1)
        if len(cells) <= at + 1 or not cells[at].isdigit():
            continue
        match = FORMATS.expressions["command_rank"].search(line.encode())
        local = FORMATS.expressions["command_local_rank"].search(line.encode())
        number = int(next(filter(None, local.groups()))) if local else None
        rank = int(next(filter(None, match.groups()))) if match else None
        if rank is None and number is not None and number < len(ranks):
            rank = ranks[number]
        if number is not None or rank is not None:
            found.append(Told(pid=int(cells[at]), local=number, rank=rank))
    return found
