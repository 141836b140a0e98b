"""The operator's failure table: each failure is brought about, and what the docs say one sees is what one sees."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from tracecore.agent.component import Setting
from tracecore.agent.extensions.persistence import transient
from tracecore.agent.processors.k8sattributes import K8sAttributes
from tracecore.agent.processors.k8sattributes_options import Options as K8sOptions
from tracecore.agent.processors.podfields import Extract, PodLabel
from tracecore.agent.receivers.filelog import FileLogReceiver
from tracecore.agent.receivers.reach import fixed, unreachable
from tracecore.agent.telemetry import Meter
from tracecore.cli.ottl import command as ottl
from tracecore.cli.run import command as run
from tracecore.cli.validate import command as validate
from tracecore.diagnose.facts import processors
from tracecore.engine.emission import standing
from tracecore.engine.engine import Engine
from tracecore.facts.memory import CudaOomUnmeasured
from tracecore.facts.process import LoaderError
from tracecore.facts.projection import project
from tracecore.patterns import types
from tracecore.patterns.cases import cases_of, settings_for
from tracecore.signals.logs.tail import inotify, watches
from tracecore.signals.logs.tail.config import FileLogConfig

ROOT = Path(__file__).resolve().parents[2]
DOCS = (ROOT / "docs" / "operations.md").read_text()
TABLE = DOCS.partition("\n## When something is wrong\n")[2].partition("\n## ")[0]

OOM = [
    "[rank3]: Traceback (most recent call last):",
    '[rank3]:   File "/app/train.py", line 10, in <module>',
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.18 GiB of which 1.00 GiB is free.",
]


def documented(text: str) -> str:
    """These words, which the table promises."""
    assert text in TABLE, f"docs/operations.md does not say {text!r}"
    return text


def test_every_row_names_a_test_of_this_file() -> None:
    rows = [line for line in TABLE.splitlines() if line.startswith("| ") and not line.startswith(("| symptom", "|---"))]
    assert len(rows) >= 6
    for row in rows:
        names = re.findall(r"`(test_\w+)`", row)
        assert names, row
        assert set(names) <= set(globals()), row


def test_records_without_a_pod_name_when_rights_are_missing(node: Any, until: Any, post: Any, logs: Any) -> None:
    wrong = until(lambda: node.degraded().get("processor k8sattributes of logs"))
    assert documented("missing right: list pods") in wrong
    assert documented("missing right: list pods") in node.agent.log
    assert node.agent.metric("tracecore_component_degraded", component="k8sattributes") == 1
    document = logs(["whose line is this"], resource={"k8s.pod.uid": "u-77"})
    assert post(node.agent.port("http"), "/v1/logs", msgspec.json.encode(document), "application/json")[0] == 200
    record = until(lambda: [r for r in node.written() if r["body"] == "whose line is this"])[0]
    assert "k8s.pod.name" not in record["resource"]


def test_a_path_that_is_not_mounted(node: Any, until: Any) -> None:
    name = "receiver filelog/unmounted"
    wrong = until(lambda: node.degraded().get(name))
    assert documented("no such directory; is the host's path mounted?") in wrong
    assert f"cannot open {node.directory}/not/mounted/pods" in wrong
    assert wrong in until(lambda: node.agent.log if wrong in node.agent.log else "")
    # What can be read is read all the same.
    assert until(lambda: [r for r in node.written() if r["body"] == "hello"])


def test_a_directory_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scandir(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", path)

    assert fixed("/var/log/pods/*/*/*.log") == "/var/log/pods"
    assert fixed("logs/*.log") == "logs"
    assert fixed("/*.log") == "/"
    assert unreachable([f"{tmp_path}/*.log", f"{tmp_path}/optional/*.log"]) == ""
    # Root may read everything, so the answer of the system is given here.
    monkeypatch.setattr("os.scandir", scandir)
    assert documented("Permission denied") in unreachable([f"{tmp_path}/*/*.log"])


def test_lines_inside_json_are_said_and_the_remedy_works(node: Any, until: Any, post: Any, logs: Any) -> None:
    wrapped = [msgspec.json.encode({"level": "ERROR", "message": line}).decode() for line in OOM]
    for _ in range(8):
        body = msgspec.json.encode(logs(wrapped, resource={"service.name": "wrapped"}))
        assert post(node.agent.port("http"), "/v1/logs", body, "application/json")[0] == 200
    node.agent.wait_log(documented("detectors see the envelope, not the line"), 60.0)
    assert node.agent.log.count("detectors see the envelope") == 1
    assert node.agent.metric("tracecore_component_events_total", event="json_wrapped_body") >= 20
    # The remedy of the docs: filelog/json has these operators.
    for part in ("type: json_parser", "type: move, from: attributes.message, to: body"):
        documented(part)
    node.write("ml", "j-0", "main", "0.log", wrapped, tree="json")

    def verdict() -> list[Any]:
        return [r for r in node.written() if r["attributes"].get("pattern.name") == "cuda_oom"]

    assert until(verdict)[0]["body"].startswith("Rank 3 ran out of GPU memory")


def test_a_stamp_without_its_gpu_is_said(node: Any, until: Any, post: Any, logs: Any) -> None:
    stamps = {"hw.errors.delta": "3", "error.type": "uncorrected"}
    body = msgspec.json.encode(logs(["ecc"], resource={"host.name": "n9"}, **stamps))
    assert post(node.agent.port("http"), "/v1/logs", body, "application/json")[0] == 200
    log = node.agent.wait_log(documented("it does not say which GPU (gpu.id)"), 60.0)
    assert "hw.errors.delta" in log
    assert node.agent.metric("tracecore_component_events_total", event="stamped_without_fact") >= 1


def test_what_each_pattern_does_without_the_gpus_name() -> None:
    """Every case of every pattern whose facts name a GPU, played again without."""
    section = DOCS.partition("\n## Without the GPU's name\n")[2].partition("\n## ")[0]
    promised = {
        name: match.group(2)
        for match in re.finditer(r"^\| ((?:`\w+` ?)+)\| (\w+)", section, re.M)
        for name in re.findall(r"`(\w+)`", match.group(1))
    }
    found: dict[str, set[str]] = {}
    for kind in types():
        for case in cases_of(kind):
            if not case.positive or all(arrival.fact.gpu is None for arrival in case.arrivals):
                continue
            until = max(expectation.at for expectation in case.expectations)
            facts = [arrival.fact for arrival in case.arrivals]
            nameless = [msgspec.structs.replace(fact, gpu=None) for fact in facts]
            said, left = (
                {one.verdict.confidence for one in standing(Engine([settings_for(kind, case)]).replay(some, until))}
                for some in (facts, nameless)
            )
            if said:
                what = "quiet" if not left else "partial" if left == {"partial"} else "same"
                found.setdefault(kind.name, set()).add(what if left != said or kind.name == "cuda_oom" else "same")
    assert promised == {name: next(iter(what)) if len(what) == 1 else "some" for name, what in found.items()}


def test_a_line_that_no_recipe_knows_gets_its_class_by_a_statement() -> None:
    line = "shardfs: lease lost for shard 17 (ESTALE)"
    record: dict[str, Any] = {
        "resource": {"attributes": {"k8s.pod.name": "w-0"}},
        "log": {"body": line, "attributes": {}, "time_unix_nano": time.time_ns()},
    }
    for processor in processors("stdout"):
        processor.process_signals([record])
    assert "dataloader.error_class" not in record["log"]["attributes"]
    assert project(record) == []
    statement = documented(
        'set(attributes["dataloader.error_class"], "Stale file handle") where IsMatch(body, "lease lost for shard")'
    )
    done = CliRunner().invoke(ottl, ["run", statement], input=msgspec.json.encode(record).decode())
    assert done.exit_code == 0, done.output
    (stamped,) = (msgspec.json.decode(text) for text in done.stdout.splitlines() if text.startswith("{"))
    (fact,) = project(stamped)
    assert isinstance(fact, LoaderError)
    assert fact.error_class == "Stale file handle"


@pytest.mark.parametrize(
    ("written", "tried"),
    [
        ("2.00 GiB", 2 << 30),
        ("20.00 MiB", 20 << 20),
        ("1.50 KiB", 1536 - 1),  # the seed's arithmetic: 1024 + 50 * (1024 // 100) rounds down
        ("1.25 TiB", (1 << 40) + 25 * ((1 << 40) // 100)),
        ("2 GiB", None),
        ("2.0000 GiB", None),
        ("2,00 GiB", None),
        ("2.00 GB", None),
    ],
)
def test_numbers_in_another_format_are_not_read(written: str, tried: int | None) -> None:
    body = f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {written}. GPU 0 has a total capacity"
    record: dict[str, Any] = {
        "resource": {"attributes": {}},
        "log": {"body": body, "attributes": {}, "time_unix_nano": time.time_ns()},
    }
    for processor in processors("stdout"):
        processor.process_signals([record])
    found = record["log"]["attributes"].get("cuda_oom.tried_alloc_bytes")
    if tried is None:
        assert found is None
        documented(f"`{written}`")
        assert [type(fact) for fact in project(record) if fact.kind == "cuda_oom"] == [CudaOomUnmeasured]
    else:
        assert found is not None
        assert abs(found - tried) <= tried // 100


def test_too_many_labels_are_said(
    tmp_path: Path, peer_kind: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, until: Any
) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(
        "receivers: {otlp: {protocols: {http: }}}\nprocessors:\n  k8sattributes:\n    extract:\n      labels:\n"
        '        - {key_regex: ".*"}\n        - {key: team}\nexporters: {debug: }\nservice:\n'
        "  pipelines: {logs: {receivers: [otlp], processors: [k8sattributes], exporters: [debug]}}\n"
    )
    done = CliRunner().invoke(validate, ["--config", str(path)], standalone_mode=False)
    assert done.return_value == 0
    assert f"{path}:6:" in done.stderr
    assert documented("also takes pod-template-hash, which differs from pod to pod") in done.stderr
    assert done.stderr.count("also takes") == 1
    pods = [
        {"metadata": {"uid": f"u{n}", "name": f"w-{n}", "namespace": "ml", "labels": {f"run-{n}": "x", "team": "a"}}}
        for n in range(100)
    ]
    listed = {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": pods}
    server = peer_kind(200, msgspec.json.encode(listed))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    for labels, many in (([PodLabel(key_regex=".*")], True), ([PodLabel(key="team")], False)):
        caplog.clear()
        meter = Meter("processor", "k8sattributes")
        setting = Setting("k8sattributes", meter, time.time_ns, {}.__getitem__, tmp_path, lambda: (True, {}))
        one = K8sAttributes(K8sOptions(auth_type="none", extract=Extract(labels=labels)), setting)
        one.start()
        try:
            until(one._cluster.pods.following.synced.is_set)
            one.due()
            one.due()
            assert meter.gauges["label_attributes"]() == (101 if many else 1)
            said = documented("labels and annotations became") in caplog.text
            assert said is many
            assert caplog.text.count("different attributes") == int(many)
        finally:
            one.stop()
    server.close()


def test_a_storage_directory_must_exist(tmp_path: Path) -> None:
    text = LIGHT.format(directory=tmp_path, state=tmp_path / "state")
    path = tmp_path / "agent.yaml"
    for create, status in (("true", 0), ("false", 2)):
        path.write_text(text.replace("create_directory: true", f"create_directory: {create}"))
        done = CliRunner().invoke(validate, ["--config", str(path)], standalone_mode=False)
        assert done.return_value == status
        assert (documented("must exist, or set create_directory") in done.stderr) is bool(status)


def test_every_metric_that_is_documented_is_there(node: Any) -> None:
    table = (ROOT / "docs" / "agent.md").read_text().partition("\n## The agent about itself\n")[2]
    names = set(re.findall(r"`(tracecore_\w+)`", table.partition("\n## ")[0]))
    assert len(names) > 10
    shown = set(re.findall(r"^# TYPE (\w+)", node.agent.get("/metrics")[1], re.M))
    assert names <= shown
    filelog = set(re.findall(r"^(\w+)\{kind=\"receiver\",component=\"filelog\"\}", node.agent.get("/metrics")[1], re.M))
    assert {"tracecore_polled_files", "tracecore_watched_directories", "tracecore_stalled_files"} <= filelog


LIGHT = """\
receivers:
  filelog: {{include: ["{directory}/log/*.log"], start_at: beginning, poll_interval: 50ms, storage: file_storage}}
exporters: {{file: {{path: out.json, append: true}}}}
extensions: {{file_storage: {{directory: {state}, create_directory: true}}}}
service:
  extensions: [file_storage]
  telemetry: {{metrics: {{address: "127.0.0.1:0"}}}}
  pipelines: {{logs: {{receivers: [filelog], exporters: [file]}}}}
"""


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A directory for state: one in memory where there is one, else any."""
    memory = Path("/dev/shm")
    made = (memory if memory.is_dir() and transient(str(memory)) else tmp_path) / f"tracecore-{time.time_ns()}"
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_lines_come_twice_when_the_state_was_lost(
    agent: Callable[[str], Any], tmp_path: Path, state: Path, until: Any
) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "a.log").write_text("one\ntwo\n")
    running = agent(LIGHT.format(directory=tmp_path, state=state))
    running.wait_log(documented("it begins anew"))
    warned = bool(transient(str(state)))
    assert (documented("does not last") in running.log) is warned
    assert running.metric("tracecore_component_events_total", event="not_persistent") == warned
    until(lambda: len(running.written()) == 2)
    assert running.stop() == 0
    shutil.rmtree(state)
    running.start()
    until(lambda: len(running.written()) == 4)
    assert "it begins anew" in running.log
    assert running.stop() == 0
    # With its state it goes on where it was, and says nothing of beginning.
    (tmp_path / "log" / "a.log").write_text("one\ntwo\nthree\n")
    running.start()
    until(lambda: len(running.written()) == 5)
    assert "it begins anew" not in running.log
    assert running.metric("tracecore_component_events_total", event="begun_anew") == 0
    assert [record["body"] for record in running.written()] == ["one", "two", "one", "two", "three"]


@pytest.mark.parametrize(
    ("mount", "why"),
    [
        ("36 35 0:50 / /state rw - tmpfs tmpfs rw", "in memory"),
        (
            "36 35 8:1 /var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/s /state rw - ext4 /dev/sda1 rw",
            "emptyDir",
        ),
        ("36 35 0:50 / / rw - overlay overlay rw,lowerdir=/a", "container's own layer"),
        ("36 35 8:1 / /state rw shared:1 - ext4 /dev/sda1 rw", ""),
        ("nonsense\n1 2 3\n36 35 8:1 / /other rw - tmpfs t rw", ""),
    ],
)
def test_a_state_that_does_not_last_is_known(mount: str, why: str) -> None:
    found = transient("/state/tracecore", mount)
    assert (why in found) if why else found == ""
    if why:
        documented(why)


@pytest.mark.parametrize("reason", ["fs.inotify.max_user_watches may be raised", "a network file system"])
def test_changes_that_the_kernel_does_not_announce(
    tmp_path: Path, until: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    """Files are polled, and the log says why."""
    documented(reason)
    caplog.set_level("INFO", "tracecore.agent.filelog")
    if "network" in reason:
        monkeypatch.setattr(inotify, "foreign", lambda path: "nfs")
    else:
        monkeypatch.setattr(watches, "_most", lambda: 1)
    meter = Meter("receiver", "filelog")
    setting = Setting("filelog", meter, time.time_ns, lambda id: None, tmp_path, lambda: (True, {}))
    receiver = FileLogReceiver(FileLogConfig(include=(f"{tmp_path}/*.log",), poll_interval=10_000_000), setting)
    stop, got = threading.Event(), []

    def take(batch: Any) -> None:
        got.append(batch.count)
        batch.done()

    thread = threading.Thread(target=receiver.run, args=(take, stop))
    thread.start()
    try:
        until(lambda: documented("some files are looked at every poll_interval only:") in caplog.text)
        assert ("changes on nfs" if "network" in reason else reason) in caplog.text
        (tmp_path / "a.log").write_text("one\ntwo\n")
        until(lambda: sum(got) == 2)
        until(lambda: meter.gauges["watched_files"]() == 1)
        assert meter.gauges["watched_directories"]() == 0
        until(lambda: meter.gauges["polled_files"]() == 1)
    finally:
        stop.set()
        thread.join()
        receiver.close()


def test_nobody_rotates(tmp_path: Path, until: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The real receiver over a real file of more than 10 MiB; only the clock is ours."""
    path, meter, now = large_log(tmp_path), Meter("receiver", "filelog"), [time.time_ns()]
    with following(path, meter, now):
        until(lambda: meter.gauges["watched_files"]() == 1)
        assert meter.events["rotation_stalled"] == 0

        def stalled() -> bool:
            now[0] += 5_000_000_000
            time.sleep(0.05)
            return meter.gauges["stalled_files"]() == 1

        until(stalled)
        until(lambda: documented("rotation_stalled: nobody rotates") in caplog.text)
        assert str(path) in caplog.text
        # Counted once for each file, however long it lasts; the files are read all the same, so it stays ready.
        for _ in range(30):
            assert stalled()
        assert meter.events["rotation_stalled"] == meter.failures == 1
        assert caplog.text.count("rotation_stalled") == 1
        assert not meter.degraded
        path.rename(tmp_path / "0.log.20260101")
        path.write_bytes(b"new\n")
        until(lambda: not stalled())
        assert not meter.degraded


@pytest.mark.parametrize(
    "options", [{"rotation_stalled": 0}, {"rotation_stalled": 12 << 20}, {"operators": ()}], ids=str
)
def test_rotation_is_watched_only_where_the_kubelet_promises_it(
    tmp_path: Path, until: Any, options: dict[str, Any]
) -> None:
    path, meter, now = large_log(tmp_path), Meter("receiver", "filelog"), [time.time_ns()]
    with following(path, meter, now, **options):
        until(lambda: meter.gauges["watched_files"]() == 1)
        for _ in range(20):
            now[0] += 5_000_000_000
            time.sleep(0.05)
        assert meter.gauges["stalled_files"]() == meter.events["rotation_stalled"] == 0


def large_log(directory: Path) -> Path:
    """A container's log of 11 MiB."""
    path = directory / "0.log"
    path.write_bytes(b"x" * 1023 + b"\n")
    with path.open("r+b") as file:
        file.truncate(11 << 20)
    return path


@contextlib.contextmanager
def following(path: Path, meter: Meter, now: list[int], **options: Any) -> Iterator[None]:
    """A receiver that follows a container's log, with a clock of ours."""
    setting = Setting("filelog", meter, lambda: now[0], lambda id: None, path.parent, lambda: (True, {}))
    options = {"operators": ({"type": "container"},), **options}
    config = FileLogConfig(include=(str(path),), start_at="end", poll_interval=10_000_000, **options)
    receiver, stop = FileLogReceiver(config, setting), threading.Event()
    thread = threading.Thread(target=receiver.run, args=(lambda batch: batch.done(), stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        receiver.close()


def test_a_placeholder_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(
        "receivers:\n  otlp: {protocols: {http: }}\n"
        "exporters:\n  otlphttp:\n    endpoint: REPLACE_WITH_OTLP_HTTP_ENDPOINT\n"
        "service:\n  pipelines:\n    logs: {receivers: [otlp], exporters: [otlphttp]}\n"
    )
    for command in (validate, run):
        done = CliRunner().invoke(command, ["--config", str(path)], standalone_mode=False)
        assert done.return_value == 2
        assert f"{path}:5:15: REPLACE_WITH_OTLP_HTTP_ENDPOINT {documented('is a placeholder')}" in done.stderr
