"""Drives a real agent through everything that goes wrong on a node, and proves that no line is lost.

    SOAK_SECONDS=3600 SOAK_SEED=7 python tests/torture/soak.py
    SOAK_FOLLOWING=announced python tests/torture/soak.py     # or polled; else each start of the agent chooses

A writer in a process of its own rotates files in every way; the OTLP servers refuse, hang, forget to answer and reject;
the disk of the agent fills; the agent is stopped and started, and then killed at random instants. In the end the
server has every line: after clean stops exactly once, after kills at least once, with few of them twice.

It runs in eras. In one kind the agent is only stopped, in the other it is only killed. At the end of an era everything
is left to settle, and the accounts are made. What is printed for each era:

    missing     lines that did not arrive; there may be none
    out of sight  times a file was deleted, or a link to it went elsewhere, while the agent had it open
    excused     lines of deleted files that the agent had open, not sent when it was killed: nobody can have them;
                when it was told to stop and nobody took them in time, it says so itself
    rejected    lines that the server said it does not want
    doubled     lines that came again although nobody asked for them
    asked       lines that came again because the server took them and never said so
    bound       what may be doubled, for each kill and each stop that left something unsent: a checkpoint is written for
                each piece of a file that was read (128 KiB) when it has arrived, and for each stored request; so it is
                what was under way: one of them for each connection, and one that is being noted
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from server import GrpcServer, Hanging, HttpServer, Line, Taken

HERE = Path(__file__).parent
CONSUMERS = 2
#: Lines of a request, and of a piece of a file that is read at once, and for which a position is written: 128 KiB.
REQUEST, PIECE = 500, 1300
#: Seconds without a new line after which nothing more is expected.
PATIENCE = float(os.environ.get("SOAK_PATIENCE") or 60.0)
AGENT = """\
receivers:
{receivers}
processors:
  batch: {{send_batch_size: {request}, timeout: 20ms, send_batch_max_size: {request}}}
exporters:
  otlphttp:
    endpoint: http://127.0.0.1:{http}
    timeout: 20s
    sending_queue: {{num_consumers: {consumers}, queue_size: 20}}
    retry_on_failure: {{initial_interval: 20ms, max_interval: 300ms, max_elapsed_time: 0s}}
  otlp:
    endpoint: http://127.0.0.1:{grpc}
    timeout: 20s
    sending_queue: {{num_consumers: {consumers}, queue_size: 20, storage: file_storage}}
    retry_on_failure: {{initial_interval: 20ms, max_interval: 300ms, max_elapsed_time: 0s}}
extensions:
  file_storage: {{directory: {place}/state/kept, create_directory: true, timeout: 10s}}
service:
  extensions: [file_storage]
  telemetry: {{metrics: {{address: "127.0.0.1:0"}}}}
  pipelines:
    logs/memory:
      receivers: [filelog/memory, filelog/memory-pods]
      processors: [batch]
      exporters: [otlphttp]
    logs/stored:
      receivers: [filelog/stored, filelog/stored-pods]
      processors: [batch]
      exporters: [otlp]
"""


RECEIVER = """\
  filelog/{name}:
    include: ["{place}/{glob}"]
    exclude: ["{place}/**/*.tmp"{other}]
    start_at: beginning
{following}
    force_flush_period: 0s
    compression: auto
    storage: file_storage
"""
#: How changes of files are noticed: the kernel announces them, or files are looked at again and again.
FOLLOWING = {
    "announced": "    inotify: true\n    poll_interval: 500ms",
    "polled": "    inotify: false\n    poll_interval: 20ms",
}
POD = """\
    preserve_trailing_whitespaces: true
    operators: [{type: container, add_metadata_from_filepath: false}]
"""


def configuration(place: Path, http: int, grpc: int, following: dict[str, str]) -> str:
    """An agent with two ways out: one keeps in memory what waits, the other in a storage.

    Args:
        following: for each of the two, how changes of its files are noticed.
    """
    receivers = ""
    for tree, way in following.items():
        for name, glob, other, more in (
            (tree, f"{tree}/**/*.log*", f', "{place}/{tree}/pod/*"', ""),
            (f"{tree}-pods", f"{tree}/pod/*.log*", "", POD),
        ):
            told = RECEIVER.format(name=name, place=place, glob=glob, other=other, following=FOLLOWING[way])
            receivers += told + more
    return AGENT.format(place=place, receivers=receivers, http=http, grpc=grpc, consumers=CONSUMERS, request=REQUEST)


class Wrong(Exception):
    """What must not happen has happened."""


class Agent:
    """`tracecore run` in a process, started again and again."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.log = place / "agent.log"
        self._from = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.limited = False

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._from = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tracecore", "run", "--config", str(self._place / "agent.yaml")],
                stdout=log,
                stderr=log,
            )

    def await_start(self, meanwhile: Callable[[], None]) -> None:
        """Waits until it runs, so that it is not always killed before it does anything."""
        assert self.process is not None
        until = time.monotonic() + PATIENCE
        while b" running " not in self.log.read_bytes()[self._from :]:
            if self.process.poll() is not None or time.monotonic() > until:
                raise Wrong(f"the agent does not start (status {self.process.returncode})")
            meanwhile()
            time.sleep(0.02)

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def limit(self, size: int) -> None:
        """No file may become longer than this: for whoever appends the disk is full."""
        assert self.process is not None
        self.limited = size != resource.RLIM_INFINITY
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


class Soak:
    """One run.

    Args:
        place: an empty directory.
        seed: of all that is left to chance.
        rate: lines in a second; how many the writer may be ahead is bounded in any case.
        small: the directory of the agent's state is a file system of its own that can be filled.
        ways: how changes of files may be noticed; each start of the agent chooses.
    """

    def __init__(self, place: Path, seed: int, rate: int, small: bool, ways: list[str]) -> None:
        self._place = place
        self._chance = random.Random(seed)
        self._small = small
        self._rate = rate
        self._taken = Taken(seed)
        self._http, self._grpc = HttpServer(self._taken), GrpcServer(self._taken)
        self._open = True
        self._ways = ways
        self._configure()
        self._do = "write"
        self._ahead = 2_000
        self._agent = Agent(place)
        self._control()
        (place / "memory").mkdir()
        (place / "stored").mkdir()
        self._locks = [os.open(place / tree / "sight.lock", os.O_RDWR | os.O_CREAT) for tree in ("memory", "stored")]
        writer = [sys.executable, str(HERE / "writer.py"), str(place), str(seed)]
        self._writer = subprocess.Popen(writer)
        self._ledger = (place / "ledger.jsonl").open("a+")
        self._ledger.seek(0)
        self._gone: list[tuple[str, int, int]] = []
        self._done: list[tuple[str, str, int, int]] = []
        self._written: dict[str, int] = {}
        self._base: dict[str, int] = {}
        self._excused: set[Line] = set()
        self.kills = self.stops = self.fills = self.given_up = self.unsent = 0

    def run(self, seconds: float) -> Iterator[dict[str, Any]]:
        """Goes through eras until the time is over; gives the accounts of each."""
        deadline = time.monotonic() + seconds
        try:
            self._agent.start()
            kinds = [False, True]
            length = min(max(seconds / 2, 1.0), 60.0)
            while kinds or time.monotonic() < deadline:
                kill = kinds.pop(0) if kinds else self._chance.random() < 0.7
                yield self._era(kill, length)
        finally:
            self._stop()

    def _era(self, kill: bool, seconds: float) -> dict[str, Any]:
        before = (self.kills, self.stops, self.fills, self.unsent)
        self._do = "write"
        until = time.monotonic() + seconds
        while time.monotonic() < until or (self.kills, self.stops)[not kill] == before[not kill]:
            if self._chance.random() < 0.85:
                self._agent.await_start(self._keep_up)
            self._mischief(min(self._chance.uniform(0.1, 2.0), max(seconds / 4, 0.3)))
            if kill:
                self._kill()
            elif self._chance.random() < 0.7 or time.monotonic() >= until:
                self._clean_stop()
        self._settle(again=kill)
        found = self._accounts(kill, self.kills - before[0], self.unsent - before[3])
        names = ("kills", "stops", "fills")
        found |= {
            name: now - then
            for name, now, then in zip(names, (self.kills, self.stops, self.fills), before, strict=False)
        }
        self._taken.begin(sum(self._written.values()))
        self._base, self._excused, self._gone = dict(self._written), set(), []
        return found

    def _mischief(self, seconds: float) -> None:
        """Lets some time go by in which this and that breaks."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._taken.likelihood = self._chance.choice((0.0, 0.1, 0.5, 0.9))
            self._ahead = self._chance.choice((2_000, 2_000, 100_000))
            chance = self._chance.random()
            if chance < 0.2 and self._open:
                self._http.close()
                self._open = False
            elif chance < 0.6 and not self._open:
                self._http.open()
                self._open = True
            elif chance > 0.85:
                self._fill()
            elif chance > 0.7:
                self._empty()
            pause = time.monotonic() + self._chance.uniform(0.02, 0.3)
            while time.monotonic() < min(pause, end):
                self._keep_up()
                time.sleep(0.01)

    def _fill(self) -> None:
        """The disk of the agent is full."""
        self.fills += 1
        if self._small and self._chance.random() < 0.7:
            with contextlib.suppress(OSError), (self._place / "state" / "ballast").open("ab", 0) as file:
                while True:
                    file.write(bytes(1 << 16))
            with contextlib.suppress(OSError), (self._place / "state" / "ballast").open("ab", 0) as file:
                while True:
                    file.write(bytes(512))
        else:
            self._agent.limit(self._chance.randrange(100, 200_000))

    def _empty(self) -> None:
        if self._small:
            (self._place / "state" / "ballast").unlink(missing_ok=True)
        if self._agent.limited:
            self._agent.limit(resource.RLIM_INFINITY)

    def _kill(self) -> None:
        self._unlimited()
        self._agent.end(signal.SIGKILL)
        self.kills += 1
        self._keep_up()
        self._excuse()
        if self._chance.random() < 0.3:
            time.sleep(self._chance.random() * 0.5)
        self._start()

    def _unlimited(self) -> None:
        """A limit on files leaves no room even for what was put by; a disk that is full does. So it ends before."""
        if self._agent.limited:
            self._agent.limit(resource.RLIM_INFINITY)
            time.sleep(0.3)

    def _excuse(self) -> None:
        """What was deleted and only the process that ended had open is lost with it."""
        with self._taken.lock:
            for stream, first, end in self._gone:
                self._excused.update(
                    (stream, n)
                    for n in range(max(first, self._base.get(stream, 0)), end)
                    if (stream, n) not in self._taken.lines
                )

    def _clean_stop(self) -> None:
        # While nobody looks at files, none is deleted unseen.
        for lock in self._locks:
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            self._unlimited()
            said = self._agent.log.stat().st_size
            status = self._agent.end(signal.SIGTERM)
            # Told to stop before it listens, it ends as any program does.
            if status not in (0, -signal.SIGTERM):
                raise Wrong(f"the agent ended with status {status} when it was told to stop")
            self.stops += 1
            self._keep_up()
            told = self._agent.log.read_bytes()[said:]
            if b"records left unsent" in told:
                self.unsent += 1
            if b"deleted files did not arrive" in told:
                # It had no time to send them, and says so.
                self.given_up += 1
                self._excuse()
            self._start()
        finally:
            for lock in self._locks:
                fcntl.flock(lock, fcntl.LOCK_UN)

    def _configure(self) -> None:
        following = {tree: self._chance.choice(self._ways) for tree in ("memory", "stored")}
        text = configuration(self._place, self._http.port, self._grpc.port, following)
        (self._place / "agent.yaml").write_text(text)

    def _start(self) -> None:
        self._empty()
        self._configure()
        self._agent.start()
        self._agent.limited = False
        self._control()

    def _settle(self, again: bool) -> None:
        """Everything works again, nothing is written any more, and everything arrives.

        Args:
            again: start once more after that.
        """
        self._taken.likelihood = 0.0
        if not self._open:
            self._http.open()
            self._open = True
        self._empty()
        self._do = "pause"
        self._written = {}
        self._control()
        progress, until = -1, 0.0
        while not self._written or (missing := self._missing()):
            self._keep_up()
            if progress != self._taken.total:
                progress, until = self._taken.total, time.monotonic() + PATIENCE
            if time.monotonic() > until:
                raise Wrong(f"{len(missing)} lines did not arrive: {shown(missing)}")
            process = self._agent.process
            if process is not None and process.poll() is not None:
                raise Wrong(f"the agent ended by itself with status {process.returncode}")
            time.sleep(0.2)
        if again:
            # From the notes alone: what has arrived does not arrive again.
            self._clean_stop()
            self.stops -= 1
            self._agent.await_start(self._keep_up)
            time.sleep(0.3)

    def _missing(self) -> list[Line]:
        with self._taken.lock:
            lines, rejected = self._taken.lines, self._taken.rejected
            return [
                (stream, n)
                for stream, end in self._written.items()
                for n in range(self._base.get(stream, 0), end)
                if (stream, n) not in lines and (stream, n) not in rejected and (stream, n) not in self._excused
            ]

    def _accounts(self, kill: bool, kills: int, unsent: int) -> dict[str, Any]:
        taken = self._taken
        with taken.lock:
            again = Counter({line: count - 1 for line, count in taken.lines.items() if count > 1})
            again.update(line for line in taken.lines if line[1] < self._base.get(line[0], 0))
            doubled = again - taken.unanswered
            bound = (kills + unsent) * (CONSUMERS + 1) * (REQUEST + PIECE)
            found = {
                "era": "killed" if kill else "stopped",
                "lines": sum(end - self._base.get(stream, 0) for stream, end in self._written.items()),
                "missing": 0,
                "out of sight": len(self._gone),
                "excused": sum(line not in taken.lines for line in self._excused),
                "rejected": len(taken.rejected),
                "doubled": sum(doubled.values()),
                "bound": bound,
                "left unsent": unsent,
                "asked": sum((again - doubled).values()),
                "told by name": taken.repeated,
                "largest request": taken.largest,
                "faults": dict(taken.faults),
            }
            if taken.garbled:
                raise Wrong(f"lines were cut or mixed up: {taken.garbled[:3]}")
            if taken.misnamed:
                raise Wrong(f"{taken.misnamed} requests had the name of others")
            if found["doubled"] > bound:
                raise Wrong(f"too many lines were doubled: {found}, {shown(list(doubled))}")
        return found

    def _keep_up(self) -> None:
        """Reads what the writer did, removes files that have arrived, and tells it how far everything is."""
        while entry := self._ledger.readline():
            if not entry.endswith("\n"):
                self._ledger.seek(self._ledger.tell() - len(entry))
                break
            told = json.loads(entry)
            if "written" in told:
                self._written = told["written"]
            elif "gone" in told:
                self._gone.append((told["stream"], told["first"], told["end"]))
            else:
                self._done.append((told["done"], told["stream"], told["first"], told["end"]))
        self._remove()
        self._control()

    def _remove(self) -> None:
        kept = []
        with self._taken.lock:
            lines, rejected, base = self._taken.lines, self._taken.rejected, self._base
            for path, stream, first, end in self._done:
                arrived = all(
                    n < base.get(stream, 0) or (stream, n) in lines or (stream, n) in rejected
                    for n in range(first, end)
                )
                if not arrived:
                    kept.append((path, stream, first, end))
                elif len(self._done) > 60:
                    # Some stay, as they do where logs are rotated.
                    Path(path).unlink(missing_ok=True)
                else:
                    kept.append((path, stream, base.get(stream, 0), base.get(stream, 0)))
        self._done = kept

    def _control(self) -> None:
        process = self._agent.process
        values = {
            "do": self._do,
            "agent": process.pid if process is not None else None,
            "arrived": self._taken.total,
            "most_ahead": self._ahead,
            "rate": self._rate,
            "rotations": 0.05,
        }
        making = self._place / "control.tmp"
        making.write_text(json.dumps(values))
        making.rename(self._place / "control.json")

    def _stop(self) -> None:
        for process in (self._agent.process, self._writer):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        if self._open:
            self._http.close()
        self._grpc.stop()
        self._ledger.close()
        for lock in self._locks:
            os.close(lock)


def shown(lines: list[Line]) -> str:
    """A few lines, and how many there are of each stream."""
    return f"{dict(Counter(stream for stream, _ in lines))}, {lines[:5]} … {lines[-5:]}"


def main() -> int:
    seconds = float(os.environ.get("SOAK_SECONDS") or 3600)
    seed = int(os.environ.get("SOAK_SEED") or time.time_ns() % 1_000_000)
    rate = int(os.environ.get("SOAK_RATE") or 1_000_000)
    if "SOAK_INSIDE" not in os.environ and mounts():
        # File systems that are mounted in a name space of its own go away with it.
        return subprocess.call(
            ["unshare", "--map-root-user", "--mount", sys.executable, __file__], env={**os.environ, "SOAK_INSIDE": "1"}
        )
    place = Path(tempfile.mkdtemp(prefix="tracecore-soak-"))
    (place / "state").mkdir()
    small = "SOAK_INSIDE" in os.environ
    if small:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "soak", str(place / "state")], check=True)
    else:
        print("no file system can be mounted here: a full disk is a limit on the size of files", file=sys.stderr)
    Hanging.seconds = 0.3 if seconds < 60 else 2.0
    print(f"soak: seed {seed}, {seconds:.0f} s, in {place}", file=sys.stderr)
    ways = (os.environ.get("SOAK_FOLLOWING") or " ".join(FOLLOWING)).split()
    soak = Soak(place, seed, rate, small, ways)
    try:
        for accounts in soak.run(seconds):
            print(json.dumps(accounts), flush=True)
    except Wrong as wrong:
        print(f"soak: {wrong} (seed {seed}; files are left in {place})", file=sys.stderr)
        if small and (place / "state" / "kept").exists():
            shutil.copytree(place / "state" / "kept", place / "kept", dirs_exist_ok=True)
        return 1
    finally:
        if small:
            subprocess.run(["umount", str(place / "state")], check=False)
    shutil.rmtree(place, ignore_errors=True)
    return 0


def mounts() -> bool:
    """Whether a file system can be mounted in a name space of its own."""
    script = 'd=$(mktemp -d) && mount -t tmpfs -o size=1m x "$d" && umount "$d"; s=$?; rmdir "$d"; exit $s'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    sys.exit(main())
