"""A Kafka of our own on this machine, from the published jars, in KRaft mode; and workers of `tracecore detect`."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import select

from tracecore.store.store import Store
from tracecore.store.tables import detector_state
from tracecore.stream.partition import PartitionPosition

VERSION = "4.1.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracecore" / f"kafka-{VERSION}"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>test</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
<dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId>
<version>2.24.3</version></dependency></dependencies></project>
"""
#: Seconds until brokers have to answer.
PATIENCE = 90.0


class NoKafka(Exception):
    """Kafka cannot be started here; the message says why."""


def jars() -> Path:
    """Return the folder of Kafka's jars, fetched where they are not here yet.

    Raises:
        NoKafka: they cannot be had.
    """
    if shutil.which("java") is None:
        raise NoKafka("java is not installed")
    done = CACHE / "complete"
    if done.exists():
        return CACHE / "libs"
    if shutil.which("mvn") is None:
        raise NoKafka("mvn is not installed, and Kafka's jars are not in the cache")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as folder:
        (Path(folder) / "pom.xml").write_text(POM)
        command = [
            "mvn",
            "-q",
            "-B",
            "dependency:copy-dependencies",
            "-DoutputDirectory=libs",
            "-DincludeScope=runtime",
        ]
        got = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
        if got.returncode:
            raise NoKafka(f"mvn cannot fetch Kafka: {(got.stdout + got.stderr).strip()[-300:]}")
        # Two processes may fetch at once: whoever is first wins, and both have the same.
        with suppress(OSError):
            (Path(folder) / "libs").rename(CACHE / "libs")
    done.touch()
    return CACHE / "libs"


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends; run in the child before it becomes another program."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Brokers:
    """Brokers that can be killed and started again.

    Args:
        count: 1 or 3.
        folder: for their data.
        settings: more lines of their properties.
    """

    def __init__(self, count: int, folder: Path, **settings: object) -> None:
        self.count = count
        self._folder = folder
        self._java = ["java", "-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        self._java += ["-cp", f"{jars()}/*"]
        self._ports = [free_port() for _ in range(2 * count)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        #: More settings of clients, where brokers want them.
        self.client: dict[str, Any] = {}
        replicas = min(count, 3)
        self._settings = {
            "process.roles": "broker,controller",
            "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{self._ports[n - 1 + count]}" for n in self.numbers),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "default.replication.factor": replicas,
            "min.insync.replicas": 2 if count >= 3 else 1,
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": 2 if count >= 3 else 1,
            "unclean.leader.election.enable": "false",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            "broker.session.timeout.ms": 6000,
            # Tests play history: messages of long ago must stay.
            "log.retention.ms": -1,
        } | {name.replace("_", "."): value for name, value in settings.items()}

    @property
    def numbers(self) -> range:
        return range(1, self.count + 1)

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self._ports[: self.count]]

    def start(self) -> None:
        """Format and start all of them, and wait until they answer."""
        uuid = subprocess.run(
            [*self._java, "kafka.tools.StorageTool", "random-uuid"], capture_output=True, text=True, timeout=60
        ).stdout.split()[-1]
        for number in self.numbers:
            own = self._settings | {
                "node.id": number,
                "log.dirs": self._folder / str(number),
                "listeners": f"PLAINTEXT://127.0.0.1:{self._ports[number - 1]},"
                f"CONTROLLER://127.0.0.1:{self._ports[number - 1 + self.count]}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._ports[number - 1]}",
            }
            path = self._folder / f"{number}.properties"
            path.write_text("".join(f"{name}={value}\n" for name, value in own.items()))
            command = [*self._java, "kafka.tools.StorageTool", "format", "-t", uuid, "-c", str(path)]
            made = subprocess.run(command, capture_output=True, text=True, timeout=60)
            if made.returncode:
                raise NoKafka(f"cannot format: {(made.stdout + made.stderr)[-300:]}")
        for number in self.numbers:
            self.begin(number)
        self.wait()

    def begin(self, number: int) -> None:
        """Start one broker."""
        with (self._folder / f"{number}.log").open("ab") as out:
            command = [*self._java, "kafka.Kafka", str(self._folder / f"{number}.properties")]
            self._processes[number] = subprocess.Popen(
                command, stdout=out, stderr=out, start_new_session=True, preexec_fn=die_with_parent
            )

    def kill(self, number: int) -> None:
        """End one broker as a power failure does."""
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def signal(self, number: int, what: signal.Signals) -> None:
        self._processes[number].send_signal(what)

    def wait(self) -> None:
        """Wait until every broker is known to the others."""
        deadline = time.monotonic() + PATIENCE
        admin = self.admin()
        while time.monotonic() < deadline:
            with suppress(Exception):
                if len(admin.list_topics(timeout=2).brokers) == self.count:
                    return
            time.sleep(0.2)
        said = "".join((self._folder / f"{n}.log").read_text(errors="replace")[-300:] for n in self.numbers)
        raise NoKafka(f"brokers do not answer after {PATIENCE:.0f} s: {said}")

    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": ",".join(self.addresses), "log_level": 0} | self.client)

    def topic(self, name: str, partitions: int, **settings: object) -> str:
        """Make a topic."""
        from confluent_kafka.admin import NewTopic

        config = {key.replace("_", "."): str(value) for key, value in settings.items()}
        made = NewTopic(name, partitions, min(self.count, 3), config=config)
        admin = self.admin()  # it ends with its last reference
        for future in admin.create_topics([made], operation_timeout=30).values():
            future.result(60)
        return name

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()


@contextmanager
def running(count: int = 1, client: dict[str, Any] | None = None, **settings: object) -> Iterator[Brokers]:
    """Give brokers of a Kafka that is removed at the end.

    Args:
        client: more settings of the clients that make topics.
        settings: as in `Brokers`.

    Raises:
        NoKafka: it cannot be started here.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tracecore-kafka-", ignore_cleanup_errors=True))
        brokers = Brokers(count, Path(folder), **settings)
        brokers.client = client or {}
        stack.callback(brokers.stop)
        brokers.start()
        yield brokers


def worker(folder: Path, number: int, config: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a worker of `tracecore detect`; its log is `NUMBER.log`."""
    path = folder / f"{number}.yaml"
    path.write_bytes(msgspec.json.encode(config))
    code = "from tracecore.cli.main import main; import sys; sys.exit(main())"
    with (folder / f"{number}.log").open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-c", code, "detect", "--config", str(path)],
            stdout=out,
            stderr=out,
            preexec_fn=die_with_parent,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1] / "src")},
        )


def stored_offsets(store: Store) -> dict[int, int]:
    """Return how far each partition is stored."""
    with store.database.read() as connection:
        query = select(detector_state).where(detector_state.c.key.like("stream/%/position"))
        rows = connection.execute(query).all()
    return {
        int(row.key.split("/")[2]): msgspec.msgpack.decode(row.value, type=PartitionPosition).offset for row in rows
    }
