"""Reading on in a file: a piece of it, cut into entries, made into batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from tracecore.signals.logs.operators.conversion import Converter
from tracecore.signals.logs.tail import fingerprint
from tracecore.signals.logs.tail.arrivals import Arrivals
from tracecore.signals.logs.tail.batch import LogBatch
from tracecore.signals.logs.tail.config import FileLogConfig
from tracecore.signals.logs.tail.counters import TailCounters
from tracecore.signals.logs.tail.splitting import splitter
from tracecore.signals.logs.tail.watched import WatchedFile

#: Bytes read at once: a position is written for each such piece, and a kill doubles no more than pieces under way.
READ: Final = 1 << 17
#: Where most lines are passed over, larger pieces are faster, and few lines of each are ever handed out.
SCANNED: Final = 1 << 21
#: Bytes at the end of such a piece in which the end of a line is looked for before it is read.
LAST: Final = 1 << 12


class Reading:
    """Reads files piece by piece.

    Args:
        config: the options.
        converter: makes batches of entries.
        arrivals: told what was handed out.
        counters: told what was read and what was cut.
        report: told in words what cannot be read.
        piece: bytes read at once.
    """

    def __init__(
        self,
        config: FileLogConfig,
        converter: Converter,
        arrivals: Arrivals,
        counters: TailCounters,
        report: Callable[[str], Any],
        piece: int = READ,
    ) -> None:
        self._piece = piece
        self._config = config
        self._converter = converter
        self._arrivals = arrivals
        self._counters = counters
        self._report = report
        unlimited = config.max_log_size_behavior == "truncate"
        self._most = 1 << 62 if unlimited else config.max_log_size
        self._split = splitter(config, scanned=piece > READ)

    def read(self, file: WatchedFile, now: int, batches: list[LogBatch]) -> tuple[int, bool]:
        """Reads a piece of a file; gives how many bytes, and whether there is more to read at once."""
        config = self._config
        if file.fd is None:
            return 0, False
        if file.ahead and file.offset >= file.ahead[0][0]:
            self._skip(file, now, batches)
            return 1, True
        want = self._piece
        if file.compressed or file.rest > want // 2:
            want = max(want, config.max_log_size + 1)
        if not file.compressed:
            want = min(want, file.target - file.offset)
        # What follows this arrived before a restart: an entry ends here, whatever it looks like.
        border = bool(file.ahead) and file.ahead[0][0] - file.offset <= want
        if border:
            want = file.ahead[0][0] - file.offset
        try:
            if want == self._piece == SCANNED:
                want = self._to_line_end(file, want)
            data = file.read(want) if want > 0 else b""
        except OSError as error:
            self._counters.unreadable += 1
            self._report(f"{file.path} cannot be read: {error.strerror}")
            return 0, False
        if file.inflation is not None and file.inflation.damaged:
            self._counters.damaged += 1
            self._report(f"{file.path} is damaged; what came before the damage was read")
        if not data:
            file.rest = 0
            return 0, False
        if not file.compressed and not self._unchanged(file):
            # Truncated and written anew while it was read: nothing of this can be trusted. The next look sorts it out.
            self._counters.truncated_while_read += 1
            return 0, False
        border = border and len(data) == want
        at_end = border or (len(data) < want if file.compressed else file.offset + len(data) >= file.target)
        tokens, starts = self._split(data, self._most)
        if not starts[-1] and not at_end and len(data) < config.max_log_size:
            file.rest = self._piece  # an entry longer than what was read: read more next time
            if file.inflation is not None:
                file.inflation.give_back(data)
            return 0, True
        tokens, starts, consumed = self._bounded(file, data, tokens, starts)
        rest = len(data) - consumed
        if tokens or consumed:
            file.flush_length = 0
            file.flush_since = now
        if at_end and rest and (border or (rest < config.max_log_size and self._flushed(file, rest, now))):
            tokens = [*tokens, data[consumed:]]
            consumed = len(data)
            starts = [*starts, consumed]
            rest = 0
        start = file.offset
        file.offset += consumed
        if file.inflation is not None and rest:
            file.inflation.give_back(data[consumed:])
        file.rest = rest
        self._counters.bytes_read += consumed
        if consumed:
            found, safe = self._converter.convert(file, data[:consumed], tokens, starts, start, now)
            file.record += len(tokens)
            self._give(file, found, safe, batches)
            for other, still in self._converter.released():
                # Its held-back lines have gone out with these.
                self._arrivals.give(other, found[-1:], still)
        more = bool(consumed) and (border or not at_end or rest >= config.max_log_size)
        return len(data), more

    def _to_line_end(self, file: WatchedFile, want: int) -> int:
        """Return how much of a large piece ends with a line: what has no rest need not be copied."""
        if file.compressed or file.fd is None or file.offset + want >= file.target:
            return want
        last = os.pread(file.fd, LAST, file.offset + want - LAST).rfind(b"\n")
        return want - LAST + last + 1 if last >= 0 else want

    def _skip(self, file: WatchedFile, now: int, batches: list[LogBatch]) -> None:
        """Goes on behind what arrived before a restart; nothing before it belongs to what comes after."""
        for held, batch, safe in self._converter.flush(file, now):
            self._give(held, [batch], safe, batches)
        self._arrivals.skip(file)

    def _unchanged(self, file: WatchedFile) -> bool:
        """Return whether a file still begins as it did: then what was just read of it is what was written there."""
        assert file.fd is not None
        known = file.fingerprint
        return fingerprint.digest(os.pread(file.fd, known.length, 0)) == known.digest

    @property
    def holds(self) -> bool:
        """Return whether something is held back until its time comes."""
        return self._converter.holds

    def due(self, now: int, batches: list[LogBatch]) -> None:
        """Gives what has been held back for long enough."""
        for file, batch, safe in self._converter.due(now):
            self._give(file, [batch], safe, batches)

    def drain(self, now: int, batches: list[LogBatch]) -> None:
        """Gives all that is held back."""
        for file, batch, safe in self._converter.drain(now):
            self._give(file, [batch], safe, batches)

    def _give(self, file: WatchedFile, found: Sequence[LogBatch], safe: int | None, batches: list[LogBatch]) -> None:
        for batch in found:
            self._counters.records += batch.count
            batches.append(batch)
        self._arrivals.give(file, found, safe)

    def _bounded(
        self, file: WatchedFile, data: bytes, tokens: Sequence[bytes], starts: Sequence[int]
    ) -> tuple[Sequence[bytes], Sequence[int], int]:
        """Entries no longer than allowed, and up to where they go."""
        most = self._config.max_log_size
        consumed = starts[-1]
        if file.skipping:
            if tokens:
                self._counters.bytes_dropped += starts[1]
                tokens, starts = tokens[1:], starts[1:]
                file.skipping = False
            else:
                self._counters.bytes_dropped += len(data)
                return [], [len(data)], len(data)
        if self._most > most and any(len(token) > most for token in tokens):
            long = [len(token) - most for token in tokens if len(token) > most]
            self._counters.lines_capped += len(long)
            self._counters.bytes_dropped += sum(long)
            tokens = [token[:most] for token in tokens]
        if not tokens and consumed == 0 and len(data) >= most:
            self._counters.lines_capped += 1
            file.skipping = self._most > most
            return [data[:most]], [0, most], most
        return tokens, starts, consumed

    def _flushed(self, file: WatchedFile, rest: int, now: int) -> bool:
        """Return whether what stands after the last line end is to be given out."""
        if file.compressed or self._config.delete_after_read:
            return True
        if not self._config.force_flush_period:
            return False
        if rest > file.flush_length:
            file.flush_length = rest
            file.flush_since = now
            return False
        if now - file.flush_since > self._config.force_flush_period:
            file.flush_length = 0
            return True
        return False
