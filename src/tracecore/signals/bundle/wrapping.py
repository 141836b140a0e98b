"""Recognition of the prefix that a launcher or viewer writes before every line: srun's labels, names of containers."""

from __future__ import annotations

from collections.abc import Callable

import re2

from tracecore.signals.bundle.formats import FORMATS
from tracecore.signals.logs.dialects import WRAPPINGS

_LEVELS = frozenset(FORMATS.words["levels"])
_LABELLED = re2.compile(rb"^ *\d{1,7}: ?[\[A-Za-z]")


#: srun's label before a line of a rank, and before a line of a launcher that starts several ranks.
_RANK_OF_TASK = re2.compile(rb"(?m)^ *(\d{1,7}): ?\[rank(\d{1,7})\]")
_LAUNCHER_OF_TASK = re2.compile(
    rb"(?m)^ *\d{1,7}: [^\n]*(?:Setting OMP_NUM_THREADS environment variable for each process"
    rb"|failed \(exitcode: -?\d+\) local_rank: [1-9])"
)
#: Lines that name the machine of a task: in torchelastic's table of failures, by NCCL, or by srun itself.
_MACHINE_OF_TASK = (
    re2.compile(rb"(?m)^ *(\d{1,7}):  +host +: ([A-Za-z][\w.-]*)\r?$"),
    re2.compile(rb"(?m)^ *(\d{1,7}): ([A-Za-z][\w.-]*):\d+:\d+ \[\d+\] NCCL "),
)
_ENDED_TASK = re2.compile(rb"(?m)^srun: error: ([A-Za-z][\w.-]*): task (\d{1,7}): ")


def task_machines(head: bytes, tail: bytes) -> dict[str, str]:
    """Return the machine of each of srun's tasks, if lines of the file name it and agree."""
    found: dict[str, set[str]] = {}
    for text in (head, tail):
        pairs = [pair for expression in _MACHINE_OF_TASK for pair in expression.findall(text)]
        pairs += [(task, node) for node, task in _ENDED_TASK.findall(text)]
        for task, node in pairs:
            found.setdefault(task.decode(), set()).add(node.decode())
    return {task: nodes.pop() for task, nodes in found.items() if len(nodes) == 1}


def _start_ranks(head: bytes, tail: bytes) -> bool:
    """Whether srun's tasks are launchers, one on each machine. The numbers of tasks are no ranks then."""
    pairs = {pair for text in (head, tail) for pair in _RANK_OF_TASK.findall(text)}
    if any(int(task) != int(rank) for task, rank in pairs):
        return True
    own = any(int(task) for task, _ in pairs)
    return not own and any(_LAUNCHER_OF_TASK.search(text) is not None for text in (head, tail))


def wrapping(head: bytes, tail: bytes = b"") -> str:
    """Return which of `dialects.WRAPPINGS` at least 90 % of the lines have; if there are few lines, all."""
    found = _wrapping(head)
    return "tasks" if found == "srun" and _start_ranks(head, tail) else found


def _wrapping(head: bytes) -> str:
    lines = [line for line in head[:16_384].split(b"\n")[:60] if line.strip() and not _is_of_launcher(line)]
    if len(lines) < 4:
        return "srun" if len(lines) > 1 and all(map(_LABELLED.match, lines)) else ""
    for name in _MAY_WRAP:
        expression = WRAPPINGS[name]
        # The first lines suffice to exclude nearly all files.
        first = [line for line in lines[:8] if _MAY_WRAP[name](line)]
        if sum(1 for line in first if expression.match(line)) * 2 <= len(lines[:8]):
            continue
        found = [match for line in lines if (match := expression.match(line))]
        if len(found) >= len(lines) * 0.9 and _TELLS_APART[name](found):
            return name
    return ""


def _is_of_launcher(line: bytes) -> bool:
    """Whether a line is the launcher's or viewer's own message, which has no wrapping."""
    return line.startswith((b"Attaching to ", b"srun: ", b"slurmstepd: ", b"pdsh@")) or b" exited with code " in line


#: The second column of a table of numbers: `FAN3_1 | 0.000 | RPM | cr`.
_CELL = re2.compile(rb"^\|\s*(?:na|-?\d[\d.]*(?: RPM| degrees C| Volts| Watts| Amps)?|0x[0-9a-f]+)\s*\|")
_NUMBERED = re2.compile(rb"[-_.]\d+(?:\.\w+@[\w.-]+)?$")
_POD = re2.compile(rb"-[a-z0-9-]*\d|\d[a-z0-9]*-|-[a-z0-9]{5}$")


def _are_containers(found: list[re2._Match]) -> bool:
    """Whether these are prefixes of compose: the bars are aligned, and the names are numbered or differ."""
    names = {match.group(1) for match in found}
    bars = {match.group().find(b"|") for match in found}
    named = all(_NUMBERED.search(name) for name in names) or (len(names) > 1 and not names & _LEVELS)
    table = all(_CELL.match(match.string[match.group().find(b"|") :]) for match in found)
    return len(bars) == 1 and named and not table and not any(name.isdigit() for name in names)


def _are_pods(found: list[re2._Match]) -> bool:
    """Whether these are prefixes of stern: few different names, which look like those of pods."""
    pods = {match.group(1) for match in found}
    containers = {match.group(2) for match in found}
    few = len(pods) * 3 <= len(found) and len(containers) <= 3
    return few and len(found) >= 8 and all(_POD.search(pod) for pod in pods)


_COUNTED = re2.compile(rb"(?i)^(?:rank|epoch|step|iter|iteration|batch|layer|fold|trial|gpu|cuda|task)[-_]?\d+$")


def _are_machines(found: list[re2._Match]) -> bool:
    """Whether these are prefixes of pdsh: few different names, which differ only in their numbers and count nothing."""
    names = {match.group(1) for match in found}
    alike = len({re2.sub(rb"\d+", b"0", name) for name in names}) == 1
    return len(names) > 1 and len(names) * 2 <= len(found) and alike and not any(_COUNTED.match(name) for name in names)


#: Cheap checks that exclude lines without a wrapping.
_MAY_WRAP: dict[str, Callable[[bytes], bool]] = {
    "srun": lambda line: line.lstrip(b" ")[:1].isdigit(),
    "compose": lambda line: line[:1].isalnum() and b"|" in line,
    "stern": lambda line: line[:1].isalnum(),
    "pdsh": lambda line: b":" in line[2:64],
}
_TELLS_APART: dict[str, Callable[[list[re2._Match]], bool]] = {
    "srun": lambda found: True,
    "compose": _are_containers,
    "stern": _are_pods,
    "pdsh": _are_machines,
}
