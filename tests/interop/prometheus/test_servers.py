"""A real node_exporter, and a real Prometheus that scrapes what we scrape."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracecore.agent.receivers.gpu import infiniband
from tracecore.diagnose.facts import processors
from tracecore.diagnose.metrics import MetricFacts
from tracecore.signals.metrics.otlp import points

pytestmark = pytest.mark.interop

#: Labels of Prometheus' that are a resource's here.
_WHERE = ("job", "instance", "__name__")
Found = dict[tuple[tuple[str, str], ...], float]


def numbers(payload: dict[str, Any]) -> Found:
    """Every value of a payload as Prometheus stores it: histograms and summaries taken apart, ended series left out."""
    found: Found = {}

    def put(name: str, labels: dict[str, Any], value: float) -> None:
        found[tuple(sorted({"__name__": name, **{k: str(v) for k, v in labels.items()}}.items()))] = value

    for entry in payload["resource_metrics"]:
        for scope in entry["scope_metrics"]:
            for metric in scope["metrics"]:
                name = metric["name"]
                for kind in ("gauge", "sum"):
                    for point in metric.get(kind, {}).get("data_points", ()):
                        if not point.get("flags"):
                            put(name, point["attributes"], point["as_double"])
                for kind in ("histogram", "summary"):
                    for point in metric.get(kind, {}).get("data_points", ()):
                        if point.get("flags"):
                            continue
                        labels = point["attributes"]
                        put(f"{name}_count", labels, point["count"])
                        put(f"{name}_sum", labels, point.get("sum", 0.0))
                        for one in point.get("quantile_values", ()):
                            put(name, {**labels, "quantile": f"{one['quantile']:g}"}, one["value"])
                        total = 0
                        bounds = [*(f"{bound:g}" for bound in point.get("explicit_bounds", ())), "+Inf"]
                        for bound, count in zip(bounds, point.get("bucket_counts", ()), strict=False):
                            total += count
                            put(f"{name}_bucket", {**labels, "le": bound}, total)
    return found


def stored(server: Any, job: str) -> Found:
    """What Prometheus has of a job."""
    return {
        tuple(sorted((k, v) for k, v in labels if k not in ("job", "instance"))): value
        for labels, value in server.query(f'{{job="{job}"}}').items()
    }


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s")


TEXT = """\
# TYPE errors_total counter
errors_total{gpu="0"} 4
# TYPE heat gauge
heat{gpu="0",note="a \\"b\\" \\\\ c"} 61.25
heat{gpu="1"} -3
# TYPE wait histogram
wait_bucket{le="0.5"} 2
wait_bucket{le="+Inf"} 3
wait_sum 1.5
wait_count 3
plain 7
"""


def test_what_prometheus_stores(exporter: Any, ours: Any, server: Any) -> None:
    exporter.text = TEXT
    running = server({"job_name": "job", "static_configs": [{"targets": [exporter.address]}]})
    until(lambda: len(stored(running, "job")) > 10)
    mine = ours(exporter.address)
    got = numbers(mine.scrape())
    volatile = {k for k in got if dict(k)["__name__"] in ("scrape_duration_seconds", "scrape_series_added")}
    assert got.keys() == stored(running, "job").keys()
    assert {k: v for k, v in got.items() if k not in volatile} == {
        k: v for k, v in stored(running, "job").items() if k not in volatile
    }
    # A series ends.
    exporter.text = TEXT.replace('heat{gpu="1"} -3\n', "")
    got = numbers(mine.scrape())
    until(lambda: stored(running, "job").keys() == got.keys())
    # The target is gone.
    exporter.status = 503
    got = numbers(mine.scrape())
    until(lambda: stored(running, "job").keys() == got.keys())
    assert {dict(k)["__name__"]: v for k, v in got.items()}["up"] == 0
    assert len(got) == 5
    # And comes back.
    exporter.text, exporter.status = TEXT, 200
    got = numbers(mine.scrape())
    until(lambda: stored(running, "job").keys() == got.keys())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a 1\nb two\n", "a value that is none"),
        ('a{b="c} 1\n', "a label without an end"),
        ("a 1\n<html>\n", "a page"),
        ('a{b="c",b="d"} 1\n', "a label twice"),
    ],
)
def test_what_prometheus_refuses(exporter: Any, ours: Any, server: Any, text: str, why: str) -> None:
    exporter.text = text
    running = server({"job_name": "job", "static_configs": [{"targets": [exporter.address]}]})
    found = until(lambda: running.query('up{job="job"}'))
    assert list(found.values()) == [0.0], why
    got = {dict(k)["__name__"]: v for k, v in numbers(ours(exporter.address).scrape()).items()}
    assert got["up"] == 0.0
    assert "a" not in got


def test_a_whole_node_exporter(nodes: Any, ours: Any, server: Any) -> None:
    """The same series; those that are the same in two scrapes of Prometheus' have the same value here."""
    address = nodes()
    running = server({"job_name": "job", "static_configs": [{"targets": [address]}]})
    until(lambda: len(stored(running, "job")) > 100)
    before = stored(running, "job")
    got = numbers(ours(address).scrape())
    time.sleep(2)
    after = stored(running, "job")
    # Collectors of node_exporter come and go with what the machine does; nearly all are the same.
    assert len(got.keys() ^ after.keys()) <= 10
    still = [k for k in got.keys() & before.keys() & after.keys() if before[k] == after[k] and before[k] == before[k]]
    assert len(still) > 100
    wrong = [
        k for k in still if got[k] != before[k] and not dict(k)["__name__"].startswith(("go_", "process_", "promhttp"))
    ]
    assert len(wrong) <= 5, wrong[:10]


def sysfs(place: Path) -> Path:
    """Two ports as the kernel shows them, every counter with a value of its own."""
    names = (
        "symbol_error", "link_downed", "link_error_recovery", "local_link_integrity_errors",
        "excessive_buffer_overrun_errors", "port_rcv_errors", "port_rcv_remote_physical_errors",
        "port_rcv_switch_relay_errors", "port_rcv_constraint_errors", "port_xmit_constraint_errors",
        "port_xmit_discards", "VL15_dropped", "port_rcv_data", "port_xmit_data",
    )  # fmt: skip
    for number, device in enumerate(("mlx5_0", "mlx5_1"), 1):
        root = place / "class" / "infiniband" / device
        port = root / "ports" / "1"
        (port / "counters").mkdir(parents=True)
        for name, text in {"board_id": "MT_1", "fw_ver": "28.39.1002", "hca_type": "MT4129"}.items():
            (root / name).write_text(f"{text}\n")
        for name, text in {
            "state": "4: ACTIVE" if number == 1 else "1: DOWN",
            "phys_state": "5: LinkUp" if number == 1 else "3: Disabled",
            "rate": "400 Gb/sec (4X NDR)",
            "link_layer": "InfiniBand",
        }.items():
            (port / name).write_text(f"{text}\n")
        for value, name in enumerate(names, 1):
            (port / "counters" / name).write_text(f"{100 * number + value}\n")
    return place


def _values(payload: dict[str, Any]) -> dict[str, float]:
    keys = ("hw.type", "hw.network.ib.device", "hw.network.ib.port.num", "error.type", "network.io.direction")
    found = {}
    for entry in payload["resource_metrics"]:
        for scope in entry["scope_metrics"]:
            for metric in scope["metrics"]:
                if metric["name"].startswith("hw."):
                    (kind,) = {"gauge", "sum"} & metric.keys()
                    for point in metric[kind]["data_points"]:
                        about = {k: point["attributes"][k] for k in keys if k in point["attributes"]}
                        # Only data has a direction: node_exporter's names have one for some errors too.
                        if metric["name"] == "hw.errors":
                            about.pop("network.io.direction", None)
                        found[f"{metric['name']} {metric['unit']} {json.dumps(about, sort_keys=True)}"] = point[
                            "as_double"
                        ]
    return found


def test_the_same_ports_by_node_exporter_and_by_ourselves(nodes: Any, ours: Any, tmp_path: Path) -> None:
    """The recipe's names for what node_exporter says, and what the gpu receiver reads itself, are the same."""
    tree = sysfs(tmp_path / "sys")
    address = nodes(
        f"--path.sysfs={tree}", "--collector.disable-defaults", "--collector.infiniband", "--collector.uname"
    )
    payload = ours(address).scrape()
    for processor in processors("metrics"):
        processor.process_metrics(payload)
    theirs = _values(payload)
    mine = {
        f"{v.name} {v.unit} {json.dumps(dict(v.attributes), sort_keys=True)}": float(v.value)
        for v in infiniband.collect(tree / "class" / "infiniband")
    }
    assert theirs == mine
    assert len(mine) == 2 * 17


def test_flaps_seen_by_node_exporter_are_facts(nodes: Any, ours: Any, tmp_path: Path) -> None:
    tree = sysfs(tmp_path / "sys")
    address = nodes(
        f"--path.sysfs={tree}", "--collector.disable-defaults", "--collector.infiniband", "--collector.uname"
    )
    mine, facts = ours(address), MetricFacts()
    state = tree / "class" / "infiniband" / "mlx5_0" / "ports" / "1" / "state"
    for text in ("4: ACTIVE", "1: DOWN", "4: ACTIVE"):
        state.write_text(text)
        for point in points(mine.scrape()):
            facts.observe(point)
        time.sleep(0.05)
    found = [f for f in facts.advance(time.time_ns() + 10 * 10**9) if getattr(f, "device", "") == "mlx5_0"]
    assert [fact.state for fact in found] == [4, 1, 4]  # type: ignore[attr-defined]
    import socket

    assert {fact.node for fact in found} == {socket.gethostname()}, "node_exporter says which machine it is on"
