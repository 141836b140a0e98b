"""Dumps are taken when they are whole, once, and never through a link; what they show is told by name."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracecore.agent.batch import Batch, Refused
from tracecore.agent.component import Setting
from tracecore.agent.configuration import ConfigurationError, read
from tracecore.agent.processors.patterndetector import Options as DetectorOptions
from tracecore.agent.processors.patterndetector import PatternDetector
from tracecore.agent.receivers.ncclfr import NcclFr, Options, whole
from tracecore.agent.telemetry import Meter
from tracecore.signals.storage.file_storage import FileStorage, FileStorageConfig

SECOND = 1_000_000_000
GLOO = Path(__file__).parents[1] / "data" / "fr_gloo"


class Watching:
    """A receiver that runs, and what it gave."""

    def __init__(self, directory: Path, storage: FileStorage | None = None, **options: Any) -> None:
        self.meter = Meter("receiver", "ncclfr")
        self.batches: list[Batch] = []
        self.refusing = False
        chosen: dict[str, Any] = {"start_at": "beginning", "poll_interval": SECOND // 100, "settle": SECOND // 20}
        extensions = {"file_storage": storage}
        setting = Setting("ncclfr", self.meter, time.time_ns, extensions.__getitem__, Path(), lambda: (True, {}))
        if storage is not None:
            chosen["storage"] = "file_storage"
        self._receiver = NcclFr(Options(directory=str(directory), **{**chosen, **options}), setting)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._receiver.run, args=(self._take, self._stop))

    def _take(self, batch: Batch) -> None:
        if self.refusing:
            raise Refused
        self.batches.append(batch)
        batch.done()

    @property
    def names(self) -> list[str]:
        return [record["attributes"]["log.file.name"] for record in self.records]

    @property
    def records(self) -> list[dict[str, Any]]:
        return [b.view()["resource_logs"][0]["scope_logs"][0]["log_records"][0] for b in list(self.batches)]

    def __enter__(self) -> Watching:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def rounds(self, count: int = 15) -> None:
        """Let it look a few times more, far longer than it waits for anything but patience."""
        time.sleep(count * 0.02)


Wait = Callable[..., Any]


def test_a_dump_is_taken_whole_and_as_it_is(tmp_path: Path, wait_for: Wait) -> None:
    data = (GLOO / "hang_one_rank" / "fr_dump_0").read_bytes()
    with Watching(tmp_path, resource={"gen_ai.training.job_id": "j7"}) as one:
        (tmp_path / "nccl_trace_rank_0").write_bytes(data)
        wait_for(lambda: one.batches, 30)
        one.rounds()
    assert [record["body"] for record in one.records] == [data]
    entry = one.batches[0].view()["resource_logs"][0]
    assert entry["resource"]["attributes"]["tracecore.layer"] == "flight_recorder"
    assert entry["resource"]["attributes"]["gen_ai.training.job_id"] == "j7"
    assert one.records[0]["attributes"]["log.file.path"] == str(tmp_path / "nccl_trace_rank_0")


def test_a_dump_that_is_still_being_written_is_waited_for(tmp_path: Path, wait_for: Wait) -> None:
    data = (GLOO / "hang_one_rank" / "fr_dump_0").read_bytes()
    cut = next(at for at in range(len(data) // 2, len(data)) if data[at - 1 : at] != b".")
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(data[:cut])
    with Watching(tmp_path) as one:
        one.rounds()
        assert one.batches == []
        with path.open("ab") as file:
            file.write(data[cut:])
        wait_for(lambda: one.batches, 30)
    assert [record["body"] for record in one.records] == [data]
    assert one.meter.dropped == {}


def test_a_dump_that_stays_half_is_given_up_and_counted(tmp_path: Path, wait_for: Wait) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes((GLOO / "healthy" / "fr_dump_0").read_bytes()[:-1] + b"q")
    with Watching(tmp_path, patience=SECOND // 10) as one:
        wait_for(lambda: one.meter.dropped.get("truncated"), 30)
        one.rounds()
    assert one.batches == []
    assert one.meter.dropped == {"truncated": 1}


def test_what_ends_like_a_dump() -> None:
    assert whole(b"\x80\x02}q\x00.")
    assert not whole(b"\x80\x02}q\x00")
    assert whole(b'{"version": "2.10"}\n')
    assert not whole(b'{"version": ')
    assert not whole(b"")


def test_links_pipes_and_folders_are_left_alone(tmp_path: Path, wait_for: Wait) -> None:
    data = (GLOO / "healthy" / "fr_dump_1").read_bytes()
    outside, watched = tmp_path / "outside", tmp_path / "watched"
    outside.mkdir()
    watched.mkdir()
    (outside / "nccl_trace_rank_1").write_bytes(data)
    (watched / "nccl_trace_rank_1").symlink_to(outside / "nccl_trace_rank_1")
    (watched / "job").symlink_to(outside)
    os.link(outside / "nccl_trace_rank_1", watched / "nccl_trace_rank_2")
    os.mkfifo(watched / "nccl_trace_rank_3")
    (watched / "nccl_trace_rank_4").mkdir()
    with Watching(watched, include=("*", "*/*")) as one:
        (watched / "nccl_trace_rank_5").write_bytes(data)
        wait_for(lambda: one.batches, 30)
        one.rounds()
    assert one.names == ["nccl_trace_rank_5"]


def test_what_is_no_dump_and_what_is_too_large_stays_where_it_is(tmp_path: Path, wait_for: Wait) -> None:
    (tmp_path / "passwd").write_text("root:x:0:0\n")
    (tmp_path / "nccl_trace_rank_0").write_bytes((GLOO / "healthy" / "fr_dump_0").read_bytes())
    with Watching(tmp_path, max_dump_size=1000) as one:
        wait_for(lambda: one.meter.dropped.get("too_large"), 30)
        one.rounds()
    assert one.batches == []
    assert one.meter.dropped == {"too_large": 1}


def test_files_beyond_the_limit_are_counted(tmp_path: Path, wait_for: Wait) -> None:
    for rank in range(4):
        shutil.copy(GLOO / "healthy" / f"fr_dump_{rank}", tmp_path / f"nccl_trace_rank_{rank}")
    with Watching(tmp_path, max_files=2) as one:
        wait_for(lambda: len(one.batches) == 2, 30)
        one.rounds()
    assert one.names == ["nccl_trace_rank_0", "nccl_trace_rank_1"]
    assert one.meter.dropped == {"too_many_files": 2}


def test_a_dump_is_read_once_over_restarts_and_again_when_it_is_another(tmp_path: Path, wait_for: Wait) -> None:
    watched, state = tmp_path / "watched", tmp_path / "state"
    watched.mkdir()
    shutil.copy(GLOO / "healthy" / "fr_dump_0", watched / "nccl_trace_rank_0")
    storage = FileStorage(FileStorageConfig(directory=str(state), create_directory=True))
    storage.start()
    with Watching(watched, storage) as one:
        wait_for(lambda: one.batches, 30)
    # Written while nobody looked, and so read although the default is to begin at the end.
    shutil.copy(GLOO / "healthy" / "fr_dump_1", watched / "nccl_trace_rank_1")
    with Watching(watched, storage, start_at="end") as one:
        wait_for(lambda: one.batches, 30)
        one.rounds()
        assert one.names == ["nccl_trace_rank_1"]
        shutil.copy(GLOO / "hang_one_rank" / "fr_dump_0", watched / "nccl_trace_rank_0")
        wait_for(lambda: len(one.batches) == 2, 30)
        assert one.names == ["nccl_trace_rank_1", "nccl_trace_rank_0"]
    storage.stop()


def test_old_dumps_are_nobodys_news(tmp_path: Path, wait_for: Wait) -> None:
    shutil.copy(GLOO / "healthy" / "fr_dump_0", tmp_path / "nccl_trace_rank_0")
    with Watching(tmp_path, start_at="end") as one:
        wait_for(lambda: one._receiver._seen, 30)
        shutil.copy(GLOO / "healthy" / "fr_dump_1", tmp_path / "nccl_trace_rank_1")
        wait_for(lambda: one.batches, 30)
        one.rounds()
    assert one.names == ["nccl_trace_rank_1"]


def test_a_dump_that_nobody_took_is_offered_again_after_a_restart(tmp_path: Path, wait_for: Wait) -> None:
    shutil.copy(GLOO / "healthy" / "fr_dump_0", tmp_path / "nccl_trace_rank_0")
    one = Watching(tmp_path)
    one.refusing = True
    with one:
        one.rounds()
    assert one.batches == []
    with Watching(tmp_path) as again:
        wait_for(lambda: again.batches, 30)


@pytest.mark.parametrize("include", ["../*", "/etc/*", "a/../b", "a/b/c/d/e", ""])
def test_names_outside_the_directory_are_refused(tmp_path: Path, include: str) -> None:
    path = tmp_path / "agent.yaml"
    document = {
        "receivers": {"ncclfr": {"directory": "/tmp/dumps", "include": [include]}},
        "exporters": {"debug": {}},
        "service": {"pipelines": {"logs": {"receivers": ["ncclfr"], "exporters": ["debug"]}}},
    }
    path.write_bytes(msgspec.json.encode(document))
    with pytest.raises(ConfigurationError, match=r"below the directory|folders deep"):
        read([path])


# -- what they show --------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = time.time_ns()

    def __call__(self) -> int:
        return self.now


def told(dumps: Iterator[Path] | list[Path], *, together: bool = True) -> dict[str, dict[str, Any]]:
    """What stands after these dumps have come, by pattern."""
    clock = Clock()
    setting = Setting("p", Meter("processor", "p", "logs"), clock, {}.__getitem__, Path(), lambda: (True, {}))
    detector = PatternDetector(DetectorOptions(forward="verdicts"), setting)
    found: dict[str, dict[str, Any]] = {}

    def settle(steps: int) -> None:
        for _ in range(steps):
            clock.now += SECOND // 10
            for batch in detector.tick(clock.now):
                for entry in batch.view()["resource_logs"]:
                    attributes = entry["scope_logs"][0]["log_records"][0]["attributes"]
                    if attributes["verdict.status"] == "active":
                        found[attributes["pattern.name"]] = attributes
                    else:
                        found.pop(attributes["pattern.name"], None)

    for path in dumps:
        record = {"body": path.read_bytes(), "attributes": {"log.file.path": str(path)}, "time_unix_nano": clock.now}
        entry = {
            "resource": {"attributes": {"tracecore.layer": "flight_recorder", "host.name": "n1"}},
            "scope_logs": [{"scope": {}, "log_records": [record]}],
        }
        assert list(detector.process(Batch("logs", {"resource_logs": [entry]}))) == []
        if not together:
            settle(10)
    settle(20)
    return found


@pytest.mark.parametrize("together", [True, False])
def test_the_rank_that_never_came_is_named(together: bool) -> None:
    found = told(sorted((GLOO / "hang_one_rank").glob("fr_dump_*")), together=together)
    assert set(found) == {"nccl_hang"}
    assert "rank 2 never entered it" in found["nccl_hang"]["pattern.headline"]


def test_the_rank_that_called_something_else_is_named() -> None:
    found = told(sorted((GLOO / "op_mismatch").glob("fr_dump_*")))
    assert "collective_mismatch" in found
    assert found["collective_mismatch"]["pattern.headline"].startswith("Rank 1 called broadcast")


@pytest.mark.parametrize("scenario", ["healthy", "ring_wrap"])
def test_healthy_dumps_say_nothing(scenario: str) -> None:
    assert told(sorted((GLOO / scenario).glob("fr_dump_*"))) == {}


@pytest.mark.parametrize(
    ("scenario", "pattern"), [("mesh_hang", "nccl_hang"), ("mismatch_dtype", "collective_mismatch")]
)
def test_recorded_dumps_name_the_culprit(incidents: Path, scenario: str, pattern: str) -> None:
    from tracecore.diagnose.offline import diagnose

    found = told(sorted((incidents / scenario / "fr").iterdir()))
    offline = diagnose([incidents / scenario / "fr"])
    headlines = {e.verdict.pattern_name: e.verdict.headline() for e in offline.verdicts}
    assert found[pattern]["pattern.headline"] == headlines[pattern]


def test_a_hostile_dump_is_refused_and_the_others_are_read(tmp_path: Path) -> None:
    evil = tmp_path / "fr_dump_9"
    evil.write_bytes(
        b"\x80\x02cos\nsystem\nq\x00X\x07\x00\x00\x00version" + b"pg_config" + b"X\x02\x00\x00\x00id\x85R."
    )
    found = told([evil, *sorted((GLOO / "hang_one_rank").glob("fr_dump_*"))])
    assert set(found) == {"nccl_hang"}


CONFIG = """
receivers:
  ncclfr: {{directory: "{dumps}", start_at: beginning, poll_interval: 100ms, settle: 200ms}}
processors:
  patterndetector: {{forward: verdicts}}
exporters:
  file: {{path: "{out}"}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    logs: {{receivers: [ncclfr], processors: [patterndetector], exporters: [file]}}
"""


def test_a_running_agent_names_the_culprit_of_a_hang(
    agent: Callable[[str], Any], wait_for: Wait, incidents: Path, tmp_path: Path
) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    running = agent(CONFIG.format(dumps=dumps, out=tmp_path / "out.json"))
    for path in sorted((incidents / "mesh_hang" / "fr").iterdir()):
        shutil.copyfile(path, dumps / path.name)
    verdict = wait_for(
        lambda: next((r for r in running.written() if r["attributes"].get("pattern.name") == "nccl_hang"), None), 60
    )
    assert "rank 5" in verdict["body"]
    assert running.stop() == 0


def test_a_dump_survives_the_way_to_another_agent() -> None:
    """Agents send their dumps to one that sees all ranks."""
    from tracecore.signals.otlp import decoding, encoding

    data = (GLOO / "hang_one_rank" / "fr_dump_0").read_bytes()
    record = {"body": data, "attributes": {"log.file.path": "/d/fr_dump_0"}, "time_unix_nano": 1}
    entry = {
        "resource": {"attributes": {"tracecore.layer": "flight_recorder"}},
        "scope_logs": [{"scope": {}, "log_records": [record]}],
    }
    arrived = decoding.decode("logs", encoding.encode("logs", {"resource_logs": [entry]}))
    assert arrived["resource_logs"][0]["scope_logs"][0]["log_records"][0]["body"] == data
