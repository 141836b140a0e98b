"""Timestamps at both ends of a file, found before the file is read."""

from __future__ import annotations

from itertools import islice, pairwise

from tracecore.signals import stamps
from tracecore.signals.bundle.formats import FORMATS
from tracecore.signals.logs.dialects import plain
from tracecore.signals.stamps import Stamp

#: Lines at each end of a file that are searched for times.
LOOKED_AT = 100
#: Times at each end that are compared with each other.
COMPARED = 8


def times(head: bytes, tail: bytes) -> tuple[Stamp | None, list[Stamp]]:
    """Return the first timestamp of a file, and its last ones: the last, and the last complete one if they differ."""
    early = head.replace(b"\r", b"\n")
    late = tail.replace(b"\r", b"\n") if tail else early
    known: dict[bytes, Stamp | None] = {}  # in a short file both ends have the same lines

    def remembered(raw: bytes) -> Stamp | None:
        if raw not in known:
            known[raw] = stamp_of(raw)
        return known[raw]

    begin = list(islice(filter(None, map(remembered, early.split(b"\n", LOOKED_AT)[:LOOKED_AT])), COMPARED))
    end: list[Stamp] = []
    complete = 0
    for raw in late.rsplit(b"\n", LOOKED_AT)[: -LOOKED_AT - 1 : -1]:
        stamp = remembered(raw)
        if stamp is None or (end and stamp.missing):
            continue
        end.append(stamp)
        complete += not stamp.missing
        if complete == COMPARED:
            break
    dated = [stamp for stamp in end if not stamp.missing]
    return _typical(begin), [*(stamp for stamp in end[:1] if stamp.missing), *filter(None, (_typical(dated),))]


def _typical(found: list[Stamp]) -> Stamp | None:
    """Return the first of these times that is near the next one. A single time may be about something else."""
    for stamp, following in pairwise(found):
        if stamp.missing or following.missing or abs(stamp.nanos - following.nanos) < stamps.APART:
            return stamp
    return found[0] if found else None


_WRAPPED = plain()


def stamp_of(raw: bytes) -> Stamp | None:
    """Return the time that a line begins with or has in its text."""
    if len(raw) < 10:
        return None
    if raw.startswith(b"Timestamp  "):  # nvidia-smi -q
        return stamps.find(raw.partition(b":")[2].strip())
    if (b" : " in raw or b" AT " in raw) and (told := FORMATS.expressions["told_time"].search(raw[:400])) is not None:
        return stamps.find(b"T".join(told.groups()))
    line = _WRAPPED(raw[:400])
    return line.stamp or stamps.find(line.text)


def recorded_times(sample: bytes) -> list[int]:
    """Return the latest time in Kubernetes objects, journal entries or torchelastic's error files, if there is one."""
    told = [text for name in ("happened", "last_seen") for text in FORMATS.expressions[name].findall(sample)]
    found = [stamps.parse(text.decode()) or 0 for text in told]
    found += [int(micros) * 1000 for micros in FORMATS.expressions["journaled"].findall(sample)]
    found += [int(seconds) * stamps.SECOND for seconds in FORMATS.expressions["raised"].findall(sample)]
    found = [time for time in found if stamps.is_plausible(time)]
    return [max(found)] if found else []
