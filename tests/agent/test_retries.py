"""Clients that retry: ten minutes of it without a step are a stall, offline and live; a run that goes on is healthy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.processors.patterndetector import Options, PatternDetector
from tracecore.agent.telemetry import Meter
from tracecore.diagnose.offline import diagnose
from tracecore.patterns.contract import SECOND, rfc3339

START = 1_790_000_000 * SECOND
#: The rows of the table of DataLoader errors (docs/attributes.md), as clients write them that try again.
RETRIES = {
    "S3 throttle": "WARNING s3 reader: SlowDown, retrying in 4s",
    "S3 busy": "WARNING GET shard-7.tar: 503 Service Unavailable, will retry",
    "S3 rate": "WARNING Please reduce your request rate. Backing off 8.0s",
    "FUSE": "WARNING open '/mnt/fuse/a.tar': Transport endpoint is not connected, retrying",
    "FUSE abort": "WARNING open '/mnt/fuse/a.tar': Software caused connection abort (retry 3/100)",
    "stale handle": "WARNING [Errno 116] Stale file handle: '/lustre/a.tar', trying again",
    "queue": "WARNING loader: queue.Empty after 5 s, retrying",
    "reset": "WARNING fetch: Connection reset by peer, retrying",
    "urllib3": "WARNING urllib3.connectionpool Retrying (Retry(total=2, connect=None, read=None, redirect=None, "
    "status=None)) after connection broken by 'ProtocolError('Connection aborted.', ConnectionResetError(104, "
    "'Connection reset by peer'))': /train/shard-000123.tar",
    "urllib3 timeout": "WARNING urllib3.connectionpool Retrying (Retry(total=2, connect=None, read=None, "
    "redirect=None, status=None)) after connection broken by 'ReadTimeoutError(\"HTTPSConnectionPool("
    "host='b.s3.amazonaws.com', port=443): Read timed out. (read timeout=60)\")': /train/a.tar",
    "botocore": "botocore.retries.standard [DEBUG] Retry needed, retrying request after delay of: 3.6 (SlowDown)",
    "tenacity": "WARNING Retrying fetch in 4.0 seconds as it raised ConnectionResetError: [Errno 104] Connection reset "
    "by peer.",
}
LOADER = {"dataloader_hang", "storage_failure"}
POD = {"k8s.pod.name": "w-0", "k8s.namespace.name": "train", "k8s.node.name": "node-7"}


def lines(retry: str, steps: range, retries: range) -> list[tuple[int, str]]:
    """Seconds and text: steps, and retries between them."""
    return sorted([(at, f"INFO step: {at // 10} loss: 2.{at % 97}") for at in steps] + [(at, retry) for at in retries])


def hang(retry: str) -> list[tuple[int, str]]:
    return lines(retry, range(0, 300, 10), range(301, 902, 6))


def healthy(retry: str) -> list[tuple[int, str]]:
    return lines(retry, range(0, 3600, 10), range(3, 3600, 6))


def offline(place: Path, log: list[tuple[int, str]]) -> set[str]:
    (place / "rank0.log").write_text("".join(f"{rfc3339(START + at * SECOND)} {text}\n" for at, text in log))
    return {said.verdict.pattern_name for said in diagnose([place]).verdicts}


def live(log: list[tuple[int, str]], resource: dict[str, str], other: dict[str, str] | None = None) -> set[str]:
    """Every pattern that was said at any time, retracted or not; `other` writes the lines that are no steps."""
    now = START
    setting = Setting(
        "patterndetector",
        Meter("processor", "patterndetector"),
        lambda: now,
        {}.__getitem__,
        Path(),
        lambda: (True, {}),
    )
    detector = PatternDetector(Options(), setting)
    said: set[str] = set()
    for at, text in log:
        now = START + at * SECOND
        record = {"body": text, "attributes": {}, "time_unix_nano": now}
        whose = resource if other is None or "step:" in text else other
        entry = {"resource": {"attributes": whose}, "scope_logs": [{"scope": {}, "log_records": [record]}]}
        said.update(names(detector.process(Batch("logs", {"resource_logs": [entry]}))))
        said.update(names(detector.tick(now)))
    return said


def names(batches: Iterable[Batch]) -> Iterator[str]:
    for batch in batches:
        for entry in batch.view()["resource_logs"]:
            for scope in entry["scope_logs"]:
                for record in scope["log_records"]:
                    if "pattern.name" in record["attributes"]:
                        yield record["attributes"]["pattern.name"]


@pytest.mark.parametrize("retry", RETRIES.values(), ids=RETRIES)
def test_retries_without_a_step_are_a_stall_offline(tmp_path: Path, retry: str) -> None:
    said = offline(tmp_path, hang(retry))
    assert said & LOADER
    assert said <= LOADER


@pytest.mark.parametrize("retry", RETRIES.values(), ids=RETRIES)
@pytest.mark.parametrize("resource", [POD, {"host.name": "n1"}], ids=["pod", "host"])
def test_retries_without_a_step_are_a_stall_live(retry: str, resource: dict[str, str]) -> None:
    said = live(hang(retry), resource)
    assert said & LOADER
    assert said <= LOADER


@pytest.mark.parametrize("retry", RETRIES.values(), ids=RETRIES)
def test_a_run_that_retries_and_goes_on_is_healthy_offline(tmp_path: Path, retry: str) -> None:
    assert offline(tmp_path, healthy(retry)) == set()


@pytest.mark.parametrize("retry", RETRIES.values(), ids=RETRIES)
def test_a_run_that_retries_and_goes_on_is_healthy_live(retry: str) -> None:
    assert live(healthy(retry), POD) == set()


def test_slow_steps_among_retries_are_healthy_live() -> None:
    retry = RETRIES["S3 throttle"]
    assert live(lines(retry, range(0, 3600, 200), range(3, 3600, 20)), POD) == set()


def test_retries_that_end_with_a_step_are_healthy_offline(tmp_path: Path) -> None:
    log = lines(RETRIES["urllib3"], range(0, 300, 10), range(301, 420, 6))
    assert offline(tmp_path, [*log, *lines("", range(420, 1200, 10), range(0))]) == set()


OTHER = {"k8s.pod.name": "w-1", "k8s.namespace.name": "train"}


@pytest.mark.parametrize("node", ["node-7", "node-8"])
@pytest.mark.parametrize("retry", [RETRIES["S3 throttle"], RETRIES["stale handle"], RETRIES["urllib3"]])
def test_a_worker_that_retries_while_another_reports_the_steps_is_healthy_live(retry: str, node: str) -> None:
    assert live(healthy(retry), POD, {**OTHER, "k8s.node.name": node}) == set()


@pytest.mark.parametrize("retry", [RETRIES["S3 throttle"], RETRIES["stale handle"], RETRIES["urllib3"]])
def test_a_rank_that_retries_while_another_reports_the_steps_is_healthy_offline(tmp_path: Path, retry: str) -> None:
    for rank, steps in ((0, True), (3, False)):
        log = [f"{rfc3339(START + at * SECOND)} {text}\n" for at, text in healthy(retry) if ("step:" in text) == steps]
        (tmp_path / f"rank{rank}.log").write_text("".join(log))
    assert [said.verdict.pattern_name for said in diagnose([tmp_path]).verdicts] == []
