"""Writes numbered lines as fast as it may, and rotates its files in every way that programs do.

    python writer.py PLACE SEED

`PLACE/control.json` says what to do; `PLACE/ledger.jsonl` tells what was done. A file is only taken out of the agent's
sight (deleted, or behind a link that goes elsewhere) while the agent has it open, and the ledger says so before.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path
from typing import IO, Any

from lines import line


class Control:
    """What the other side wants, looked up now and then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next = 0.0
        self.values: dict[str, Any] = {}
        self.written = 0

    def look(self, now: bool = False) -> dict[str, Any]:
        if now or time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.02
            self.values = json.loads(self._path.read_text())
        return self.values


class Stream:
    """One log and the way it is rotated."""

    def __init__(self, name: str, place: Path, chance: random.Random, ledger: IO[str], control: Control) -> None:
        self.name = name
        self.place = place
        self.chance = chance
        self.written = 0
        self.first = 0  # of the file that is written
        self.turn = 0
        self._ledger = ledger
        self._control = control
        self._lock = os.open(place.parent / "sight.lock", os.O_RDWR | os.O_CREAT, 0o600)
        place.mkdir(parents=True)
        self.path = self.where()
        self.fd = self.open(self.path)

    def where(self) -> Path:
        return self.place / "train.log"

    def open(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def text(self, number: int) -> str:
        return line(self.name, number) + "\n"

    def write(self, count: int) -> None:
        """Some lines; now and then one comes in two pieces."""
        data = "".join(self.text(n) for n in range(self.written, self.written + count)).encode()
        self.written += count
        if self.chance.random() < 0.2:
            cut = self.chance.randrange(1, len(data))
            os.write(self.fd, data[:cut])
            time.sleep(self.chance.random() * 0.02)
            data = data[cut:]
            if self.chance.random() < 0.3:
                self.rotate(data)
                return
        os.write(self.fd, data)

    def note(self, **entry: Any) -> None:
        self._ledger.write(json.dumps({"stream": self.name, **entry}) + "\n")
        self._ledger.flush()

    def rotate(self, rest: bytes = b"") -> None:
        """Begins a new file; what is left of a line goes to the old one, as from a process that still has it open."""
        raise NotImplementedError

    def finished(self, path: Path) -> None:
        """A file that nobody writes to any more; it is removed when all of it has arrived."""
        self.note(done=str(path), first=self.first, end=self.written)

    def renewed(self, rest: bytes) -> None:
        """Finishes the old file and opens a new one."""
        os.write(self.fd, rest)
        os.close(self.fd)
        self.turn += 1
        self.path = self.where()
        self.fd = self.open(self.path)
        self.first = self.written

    def out_of_sight(self, take: Any) -> bool:
        """Takes a file away from every path, but only one that the agent has open."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            wanted = self._control.look(now=True)
            # Where little has arrived, much would be excused; so it is left for later.
            if self._control.written - wanted["arrived"] > 3000 or not holds(wanted["agent"], self.fd):
                return False
            self.note(gone=True, first=self.first, end=self.written)
            take()
            return True
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)


class Renamed(Stream):
    """Moved aside."""

    def rotate(self, rest: bytes = b"") -> None:
        aside = self.place / f"train.log.{self.turn:06d}"
        os.rename(self.path, aside)
        if self.chance.random() < 0.3:
            time.sleep(self.chance.random() * 0.05)
        self.finished(aside)
        self.renewed(rest)


class Compressed(Stream):
    """Moved aside, and compressed now or one turn later."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._waiting: Path | None = None

    def rotate(self, rest: bytes = b"") -> None:
        aside = self.place / f"train.log.{self.turn:06d}"
        os.rename(self.path, aside)
        self.finished(aside)
        self.note(done=f"{aside}.gz", first=self.first, end=self.written)
        self.renewed(rest)
        if self._waiting is not None:
            self.compress(self._waiting)
        self._waiting = aside
        if self.chance.random() < 0.5:
            self.compress(aside)
            self._waiting = None

    def compress(self, path: Path) -> None:
        if not path.exists():
            return
        making = path.with_name(f"{path.name}.gz.tmp")
        making.write_bytes(gzip.compress(path.read_bytes(), 1))
        making.rename(path.with_name(f"{path.name}.gz"))
        path.unlink(missing_ok=True)


class Copied(Stream):
    """Copied, then truncated. This one writes nothing in between, so nothing is lost by the rotation itself."""

    def rotate(self, rest: bytes = b"") -> None:
        os.write(self.fd, rest)
        aside = self.place / f"train.log.{self.turn:06d}"
        self.finished(aside)
        shutil.copyfile(self.path, aside)
        if self.chance.random() < 0.3:
            time.sleep(self.chance.random() * 0.05)
        os.ftruncate(self.fd, 0)
        self.first = self.written
        self.turn += 1


class Deleted(Stream):
    """Deleted while it is open, and written to for a while after that."""

    def rotate(self, rest: bytes = b"") -> None:
        if rest:
            os.write(self.fd, rest)
        if not self.out_of_sight(lambda: os.unlink(self.path)):
            return
        count = self.chance.randrange(100)
        self.note(gone=True, first=self.written, end=self.written + count)
        data = "".join(self.text(n) for n in range(self.written, self.written + count)).encode()
        self.written += count
        if self.chance.random() < 0.5:
            time.sleep(self.chance.random() * 0.1)
        self.renewed(data)


class Recreated(Stream):
    """Deleted and made anew at once; the new file often gets the number of the old one."""

    def rotate(self, rest: bytes = b"") -> None:
        os.write(self.fd, rest)
        if self.out_of_sight(lambda: os.unlink(self.path)):
            self.renewed(b"")


class Linked(Stream):
    """A link to a file elsewhere, which goes to another one from time to time."""

    def open(self, path: Path) -> int:
        elsewhere = self.place.parent.parent / "elsewhere" / self.name
        elsewhere.mkdir(parents=True, exist_ok=True)
        target = elsewhere / f"{self.turn:06d}"
        fd = super().open(target)
        making = path.with_name("link.tmp")
        making.symlink_to(target)
        making.rename(path)
        return fd

    def rotate(self, rest: bytes = b"") -> None:
        os.write(self.fd, rest)
        old = os.path.realpath(self.path)
        if self.out_of_sight(lambda: self.renewed(b"")):
            os.unlink(old)


class Pod(Compressed):
    """The log of a container: lines of the runtime, long ones in pieces; rotated as the kubelet does."""

    def where(self) -> Path:
        return self.place / "0.log"

    def text(self, number: int) -> str:
        body = line(self.name, number)
        stamp = f"2026-11-15T01:37:04.{number % 1_000_000_000:09d}Z stdout"
        if number % 11 == 0:
            cut = number % len(body)
            return f"{stamp} P {body[:cut]}\n{stamp} F {body[cut:]}\n"
        return f"{stamp} F {body}\n"


class Churned(Stream):
    """A file in a directory of its own each time, as pods come and go."""

    def where(self) -> Path:
        place = self.place / f"run-{self.turn:06d}"
        place.mkdir()
        return place / "train.log"

    def rotate(self, rest: bytes = b"") -> None:
        self.finished(self.path)
        self.renewed(rest)


STYLES: dict[str, type[Stream]] = {
    "rename": Renamed, "compress": Compressed, "copy": Copied, "delete": Deleted, "recreate": Recreated,
    "link": Linked, "pod": Pod, "churn": Churned,
}  # fmt: skip


def holds(pid: int | None, fd: int) -> bool:
    """Whether a process has a file open."""
    if not pid:
        return False
    wanted = os.fstat(fd)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                found = os.stat(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    except OSError:
        return False
    return False


def main() -> None:
    place, seed = Path(sys.argv[1]), int(sys.argv[2])
    chance = random.Random(seed)
    control = Control(place / "control.json")
    ledger = (place / "ledger.jsonl").open("a")
    streams = [
        make(f"{tree}-{style}", place / tree / style, chance, ledger, control)
        for tree in ("memory", "stored")
        for style, make in STYLES.items()
    ]
    began, written = time.monotonic(), 0
    paused = False
    while True:
        wanted = control.look()
        if wanted["do"] == "end":
            break
        if wanted["do"] == "pause":
            if not paused:
                paused = True
                ledger.write(json.dumps({"written": {stream.name: stream.written for stream in streams}}) + "\n")
                ledger.flush()
            time.sleep(0.01)
            began, written = time.monotonic(), 0
            continue
        if paused:
            paused = False
        total = control.written = sum(stream.written for stream in streams)
        ahead = written - (time.monotonic() - began) * wanted["rate"]
        if total - wanted["arrived"] > wanted["most_ahead"] or ahead > 0:
            time.sleep(0.005)
            continue
        stream = chance.choice(streams)
        count = chance.randrange(1, 200)
        stream.write(count)
        written += count
        if chance.random() < wanted["rotations"]:
            stream.rotate()


if __name__ == "__main__":
    main()
