"""The `journald` receiver: the systemd journal, through journalctl."""

from __future__ import annotations

import logging
import os
import select
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, Literal

import msgspec

from tracecore.agent.component import Consumer, Setting
from tracecore.agent.options import StorageId
from tracecore.agent.receivers.delivery import DeliveredPositions, deliver, logs
from tracecore.agent.tally import Tally

log = logging.getLogger("tracecore.agent.journald")

PIECE: Final = 1 << 18
#: An entry longer than this is left out, and counted.
MAX_ENTRY: Final = 4 << 20
#: Entries that journalctl wrote and nobody could read.
UNPARSED: Final = "lines_unparsed"
#: Seconds in which a journalctl that ended may turn out to have been stopped together with the agent.
LAST_WORD: Final = 1.0
_PRIORITIES: Final = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        directory: where the journal's files are; journalctl's own choice when not given.
        files: single files of a journal.
        start_at: `end` takes new entries only.
        units: systemd units.
        identifiers: syslog identifiers.
        priority: the least important level, or a range like `err..info`.
        matches: fields and values, any of which must match as a whole.
        grep: journalctl's own filter on messages.
        dmesg: the kernel's messages of this boot only.
        all: show fields that are long or not printable.
        storage: the extension that remembers how far the journal was read.
        journalctl_path: the program.
    """

    directory: str | None = None
    files: list[str] = []
    start_at: Literal["beginning", "end"] = "end"
    units: list[str] = []
    identifiers: list[str] = []
    priority: str = "info"
    matches: list[dict[str, str]] = []
    grep: str | None = None
    dmesg: bool = False
    all: bool = False
    storage: StorageId | None = None
    journalctl_path: str = "journalctl"

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        for part in self.priority.split(".."):
            if part not in _PRIORITIES and part not in map(str, range(8)):
                yield ("priority",), f'"{part}" is no level: {", ".join(_PRIORITIES)}, or 0 to 7'
        if self.directory is not None and self.files:
            yield ("files",), "give directory or files, not both"

    def command(self, cursor: str | None) -> list[str]:
        """The program and its arguments."""
        made = [self.journalctl_path, "--utc", "--output=json", "--follow", "--no-pager", f"--priority={self.priority}"]
        if cursor is not None:
            made.append(f"--after-cursor={cursor}")
        else:
            made.append("--no-tail" if self.start_at == "beginning" else "--lines=0")
        made += [f"--unit={unit}" for unit in self.units]
        made += [f"--identifier={name}" for name in self.identifiers]
        if self.directory is not None:
            made.append(f"--directory={self.directory}")
        made += [f"--file={path}" for path in self.files]
        if self.dmesg:
            made.append("--dmesg")
        if self.all:
            made.append("--all")
        if self.grep is not None:
            made.append(f"--grep={self.grep}")
        for number, match in enumerate(self.matches):
            made += ["+"] if number else []
            made += [f"{name}={value}" for name, value in sorted(match.items())]
        return made


class Journald:
    """Follows the journal; a journalctl that ends is started again where it ended."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._setting = setting
        self._unparsed = 0
        self._tally = Tally(setting.id, setting.meter, {UNPARSED: "{} entries of the journal could not be parsed"})
        self._positions: DeliveredPositions[bytes] | None = None
        #: The last entry that was handed on: a journalctl that failed goes on behind it.
        self._cursor: str | None = None

    def run(self, consume: Consumer, stop: threading.Event) -> None:
        if self._positions is None and (store := self._setting.store(self._options.storage)) is not None:
            known = store.get("cursor")
            self._cursor = known.decode("ascii", "replace") if known else None
            self._positions = DeliveredPositions(partial(store.set, "cursor"))
        process = subprocess.Popen(
            self._options.command(self._cursor),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            # A terminal's interrupt is for the agent, which ends journalctl itself.
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            rest = b""
            while not stop.is_set():
                ready, _, _ = select.select([process.stdout], [], [], 0.2)
                if not ready:
                    continue
                piece = os.read(process.stdout.fileno(), PIECE)
                if not piece:
                    # systemd stops all processes of a service at once: journalctl may end before we are told to.
                    if stop.wait(LAST_WORD):
                        return
                    raise OSError(_words(process))
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > MAX_ENTRY:
                    self._setting.meter.drop("too_long", 1)
                    rest = b""
                entries = [entry for line in lines if line and (entry := self._entry(line)) is not None]
                if entries:
                    last = entries[-1][1]
                    acks = (self._positions.ack(last.encode()),) if self._positions is not None and last else ()
                    if not deliver(consume, logs({}, [record for record, _ in entries], acks=acks), stop):
                        return
                    self._cursor = last or self._cursor
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def _entry(self, line: bytes) -> tuple[dict[str, Any], str] | None:
        try:
            body = msgspec.json.decode(line)
        except msgspec.DecodeError:
            body = None
        if not isinstance(body, dict):
            self._setting.meter.drop("malformed", 1)
            self._unparsed += 1
            self._tally.look({UNPARSED: self._unparsed})
            return None
        micros = body.pop("__REALTIME_TIMESTAMP", "")
        record: dict[str, Any] = {"body": body, "attributes": {}, "observed_time_unix_nano": time.time_ns()}
        if isinstance(micros, str) and micros.isascii() and micros.isdigit() and len(micros) < 18:
            record["time_unix_nano"] = int(micros) * 1000
        cursor = body.get("__CURSOR")
        return record, cursor if isinstance(cursor, str) and cursor.isascii() else ""


def _words(process: subprocess.Popen[bytes]) -> str:
    """Return why journalctl ended."""
    status = process.wait()
    said = process.stderr.read(2000).decode("utf-8", "replace").strip() if process.stderr is not None else ""
    return f"journalctl ended with status {status}" + (f": {said}" if said else "")
