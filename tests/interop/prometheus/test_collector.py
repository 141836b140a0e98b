"""The same target scraped by the OpenTelemetry Collector's receiver and by ours: the same metrics."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tracecore.ottl.otlpjson import decode, encode

pytestmark = pytest.mark.interop

TEXT = """\
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0", UUID="GPU-1", pod="",namespace="ml"} 61
DCGM_FI_DEV_GPU_TEMP{gpu="1", UUID="GPU-2",pod="train-0"} 63.5
# TYPE DCGM_FI_DEV_ECC_DBE_VOL_TOTAL counter
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0"} 1
# TYPE requests_total counter
requests_total{path="/a\\"b\\\\c\\nd"} 1027 1794700799000
untyped_thing{job="mine",instance="theirs"} 3
not_a_number NaN
plus_infinity +Inf
hexadecimal 1.5e-07
# HELP wait_seconds How long, with a \\\\ in it.
# TYPE wait_seconds histogram
wait_seconds_bucket{queue="a",le="0.1"} 3
wait_seconds_bucket{queue="a",le="1"} 5
wait_seconds_bucket{queue="a",le="+Inf"} 6
wait_seconds_sum{queue="a"} 4.5
wait_seconds_count{queue="a"} 6
# TYPE only_count histogram
only_count_count 4
only_count_sum 2
# TYPE no_count histogram
no_count_bucket{le="1"} 5
no_count_sum 2
# TYPE pause_seconds summary
pause_seconds{quantile="0.5"} 0.2
pause_seconds{quantile="0.99"} 0.9
pause_seconds_sum 10
pause_seconds_count 30
# TYPE empty_summary summary
empty_summary_sum 0
empty_summary_count 0
scoped{otel_scope_name="lib",otel_scope_version="1",otel_scope_color="red",x="y"} 1
target_info{service_version="3"} 1
thing_sum 5
thing_count 6
# TYPE thing_bucket gauge
thing_bucket 4
"""

OPEN = """\
# TYPE requests counter
# HELP requests of everybody
requests_total{path="/"} 5 # {trace_id="0af7651916cd43dd8448eb211c80319c",user="x"} 0.67 1794700798.25
requests_created{path="/"} 1794700000.25
# TYPE build info
build_info{version="1.2"} 1
# TYPE took_seconds gauge
# UNIT took_seconds seconds
took_seconds 3
# TYPE state stateset
state{state="a"} 1
state{state="b"} 0
# TYPE size_bytes histogram
# UNIT size_bytes bytes
size_bytes_bucket{le="10"} 2
size_bytes_bucket{le="+Inf"} 3 # {trace_id="0af7651916cd43dd"} 11
size_bytes_sum 20
size_bytes_count 3
size_bytes_created 1794700000
# TYPE rate_bytes_per_second unknown
# UNIT rate_bytes_per_second bytes_per_second
rate_bytes_per_second 12
# TYPE gh gaugehistogram
gh_bucket{le="1"} 2
gh_bucket{le="+Inf"} 3
gh_gsum 4
gh_gcount 3
# EOF
"""


class Running:
    def __init__(self, program: Path, address: str, place: Path, **job: Any) -> None:
        self._path = place / "metrics.json"
        scrape = {
            "job_name": "job",
            "scrape_interval": "1s",
            "static_configs": [{"targets": [address]}],
            **job,
        }
        config = {
            "receivers": {"prometheus": {"config": {"scrape_configs": [scrape]}}},
            "exporters": {"file": {"path": str(self._path), "flush_interval": "100ms"}},
            "service": {
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"metrics": {"receivers": ["prometheus"], "exporters": ["file"]}},
            },
        }
        (place / "collector.json").write_text(json.dumps(config).replace("$", "$$"))
        self._log = (place / "collector.log").open("wb")
        self.process = subprocess.Popen(
            [str(program), "--config", str(place / "collector.json")], stdout=self._log, stderr=self._log
        )

    def payloads(self) -> list[dict[str, Any]]:
        assert self.process.poll() is None, "the Collector ended; see collector.log"
        lines = self._path.read_text().split("\n")[:-1] if self._path.exists() else []
        return [decode(json.loads(line)) for line in lines if line]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self._log.close()


@pytest.fixture
def theirs(collector: Path, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def start(address: str, **job: Any) -> Running:
        made.append(Running(collector, address, tmp_path, **job))
        return made[-1]

    yield start
    for one in made:
        one.close()


def scrape_number(running: Running, number: int) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while len(running.payloads()) <= number:
        assert time.monotonic() < deadline, "no scrape"
        time.sleep(0.1)
    return running.payloads()[number]


def flat(payload: dict[str, Any], times: bool = False) -> dict[str, Any]:
    """Points by resource, scope, metric and attributes; what differs from scrape to scrape left out."""
    found: dict[str, Any] = {}
    for entry in payload["resource_metrics"]:
        resource = json.dumps(entry["resource"].get("attributes", {}), sort_keys=True)
        for scope in entry["scope_metrics"]:
            named = {k: v for k, v in scope["scope"].items() if v}
            own = named.get("name", "").startswith(("tracecore/", "github.com/"))
            where = "" if own else json.dumps(named, sort_keys=True)
            for metric in scope["metrics"]:
                (kind,) = {"gauge", "sum", "histogram", "summary"} & metric.keys()
                about = {name: metric.get(name) or "" for name in ("description", "unit")}
                data = {k: v for k, v in metric[kind].items() if k != "data_points" and v}
                for point in metric[kind]["data_points"]:
                    whose = json.dumps(point.get("attributes") or {}, sort_keys=True)
                    key = f"{resource} {where} {metric['name']} {whose}"
                    kept = {k: v for k, v in point.items() if k not in ("attributes", *VOLATILE)}
                    kept = {k: _round(v) for k, v in kept.items() if v not in (0, 0.0, [], None, {})}
                    if metric["name"] == "scrape_duration_seconds":
                        kept.pop("as_double", None)
                    assert key not in found, key
                    found[key] = {**about, "kind": kind, **data, "metadata": metric.get("metadata"), **kept}
    return found


def differences(got: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """What is not the same, in few words."""
    said = [f"only theirs: {key.partition('} ')[2]}" for key in expected.keys() - got.keys()]
    said += [f"only ours: {key.partition('} ')[2]}" for key in got.keys() - expected.keys()]
    for key in sorted(got.keys() & expected.keys()):
        mine, other = got[key], expected[key]
        said += [
            f"{key.partition('} ')[2]}: {name} is {mine.get(name)!r}, theirs {other.get(name)!r}"
            for name in sorted(mine.keys() | other.keys())
            if mine.get(name) != other.get(name)
        ]
    return sorted(said)


VOLATILE = ("time_unix_nano", "start_time_unix_nano")


def _round(value: Any) -> Any:
    if value in ("NaN", "Infinity", "-Infinity"):
        value = float(value)
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, list):
        return [
            {k: v for k, v in one.items() if k != "time_unix_nano" and v not in ({}, 0)}
            if isinstance(one, dict)
            else one
            for one in value
        ]
    return value


@pytest.mark.parametrize("name", ["text", "open"])
@pytest.mark.parametrize("honor", [False, True])
def test_one_scrape(exporter: Any, ours: Any, theirs: Any, name: str, honor: bool) -> None:
    exporter.text = TEXT if name == "text" else OPEN
    if name == "open":
        exporter.kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    running = theirs(exporter.address, honor_labels=honor)
    expected = flat(scrape_number(running, 0))
    got = flat(decode(encode(ours(exporter.address, honor_labels=honor).scrape())))
    assert differences(got, expected) == []
    assert len(expected) > 10


def test_rules(exporter: Any, ours: Any, theirs: Any) -> None:
    from tracecore.agent.receivers.prometheus.relabel import Relabel

    exporter.text = TEXT
    rules: list[dict[str, Any]] = [
        {"source_labels": ["__name__"], "regex": "(thing|no_count).*", "action": "drop"},
        {"regex": "UUID", "action": "labeldrop"},
        {"source_labels": ["gpu"], "regex": "(.+)", "target_label": "slot", "replacement": "s${1}"},
        {"source_labels": ["gpu", "pod"], "separator": "/", "target_label": "both"},
        {"action": "labelmap", "regex": "name(.*)", "replacement": "label$1"},
        {"source_labels": ["gpu"], "target_label": "shard", "modulus": 7, "action": "hashmod"},
        {
            "source_labels": ["__name__"],
            "regex": "DCGM_(.*)_TEMP",
            "target_label": "__name__",
            "replacement": "${1}_heat",
        },
        {"source_labels": ["pod"], "target_label": "pod", "action": "uppercase"},
    ]
    running = theirs(exporter.address, metric_relabel_configs=rules)
    expected = flat(scrape_number(running, 0))
    got = flat(decode(encode(ours(exporter.address, metric_relabel_configs=[Relabel(**r) for r in rules]).scrape())))
    assert differences(got, expected) == []


def test_a_series_ends_and_a_target_is_down(exporter: Any, ours: Any, theirs: Any) -> None:
    """Without `target_info`: the Collector forgets it with the series, so that marks stand under another resource."""
    whole = "\n".join(line for line in TEXT.splitlines() if not line.startswith("target_info")) + "\n"
    exporter.text = whole
    running, mine = theirs(exporter.address), ours(exporter.address)
    first = scrape_number(running, 0)
    mine.scrape()
    seen = len(running.payloads())
    exporter.text = (
        "\n".join(line for line in whole.splitlines() if not line.startswith(("wait_", "DCGM_FI_DEV_GPU"))) + "\n"
    )
    ended = _first_with_marks(running, seen)
    assert differences(flat(decode(encode(mine.scrape()))), flat(ended)) == []
    seen = len(running.payloads())
    exporter.status = 500
    down = _first_with_marks(running, seen)
    assert differences(flat(decode(encode(mine.scrape()))), flat(down)) == []
    assert first


def _first_with_marks(running: Running, after: int) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for payload in running.payloads()[after:]:
            if any(point.get("flags") for point in flat(payload).values()):
                return payload
        time.sleep(0.1)
    raise AssertionError("no series was marked as ended")
