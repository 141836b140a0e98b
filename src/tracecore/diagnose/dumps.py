"""Flight Recorder dumps of a bundle as facts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.signals.bundle import archive

if TYPE_CHECKING:
    from tracecore.facts.fact import Fact
    from tracecore.signals.bundle.discovery import Bundle
    from tracecore.signals.flight_recorder.dump import RankDump
    from tracecore.signals.flight_recorder.reading import SkippedDump
    from tracecore.signals.stream import Stream

_COMPRESSED: Final = (".gz", ".bz2", ".xz", ".zst", ".zstd")


class Dumps(msgspec.Struct):
    """The dumps of a bundle.

    Args:
        end: the latest time in them; 0 without dumps.
        skipped: (path, reason) of files without a usable dump.
    """

    facts: list[Fact] = []
    end: int = 0
    bytes_read: int = 0
    skipped: list[tuple[str, str]] = []


def gather(bundle: Bundle, jobs: int = 1) -> Dumps:
    """Read and join all dumps of a bundle, also those inside archives, and return their facts."""
    streams = bundle.of("flight_recorder")
    found = Dumps()
    if not streams:
        return found
    # Import numpy and the readers only if there are dumps.
    from tracecore.facts.collective_dumps import facts_of
    from tracecore.signals.flight_recorder.join import join
    from tracecore.signals.flight_recorder.reading import entry_at, load, one_for_each_rank, sets_of

    plain = [stream for stream in streams if _is_file(stream)]
    loaded = load([stream.path for stream in plain], jobs)
    skipped: list[SkippedDump] = loaded.skipped
    dumps = loaded.dumps
    if len(plain) < len(streams):
        dumps = [*dumps, *_packed([stream for stream in streams if not _is_file(stream)], skipped)]
        dumps = one_for_each_rank(dumps, skipped)
    for together in sets_of(dumps):
        joined = join(together)
        found.end = max(found.end, joined.end)
        found.facts += facts_of(joined, entry_at)
    unread = {item.path for item in skipped if item.reason != "duplicate"}
    found.bytes_read = sum(stream.size or 0 for stream in streams if stream.path not in unread)
    found.skipped = sorted((item.path, f"{item.reason.replace('_', ' ')}: {item.detail}") for item in skipped)
    return found


def _is_file(stream: Stream) -> bool:
    return "!/" not in stream.path and not stream.path.endswith(_COMPRESSED) and os.path.isfile(stream.path)


def _packed(streams: list[Stream], skipped: list[SkippedDump]) -> list[RankDump]:
    """Read dumps inside archives and compressed dumps."""
    from tracecore.signals.flight_recorder.pickled import DumpError, DumpLimits
    from tracecore.signals.flight_recorder.reading import SkippedDump, read_dump

    limits = DumpLimits()
    dumps: list[RankDump] = []
    for stream in streams:
        try:
            with stream.open() as file:
                data = file.read(limits.file_bytes + 1)
            dumps.append(read_dump(data, _without_suffix(stream.path), limits))
        except DumpError as error:
            skipped.append(SkippedDump(stream.path, error.reason, error.detail))
        except archive.ERRORS as error:
            skipped.append(SkippedDump(stream.path, "unreadable", archive.reason(error)))
    return dumps


def _without_suffix(path: str) -> str:
    """Remove the suffix of a compression, so that the name ends with the rank."""
    return next((path[: -len(suffix)] for suffix in _COMPRESSED if path.endswith(suffix)), path)
