"""Saved scrapes become points with times."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.signals.bundle.discovery import discover
from tracecore.signals.bundle.reading import points
from tracecore.signals.metrics import prometheus
from tracecore.signals.metrics.point import Point
from tracecore.signals.metrics.prometheus import INTERVAL
from tracecore.signals.stamps import SECOND
from tracecore.signals.stream import Clock, Counters, Stream

Make = Callable[..., Stream]
T = 1_794_706_624 * SECOND  # 2026-11-15T01:37:04Z
CLOCK = Clock(T, True)


def read(stream: Stream, counters: Counters | None = None) -> list[Point]:
    return list(prometheus.read(stream, CLOCK, counters or Counters()))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("up 1", ("up", {}, 1.0, None)),
        ('a:b{x="1",y="2"} -2.5e3', ("a:b", {"x": "1", "y": "2"}, -2500.0, None)),
        ('DCGM{gpu="0", UUID="GPU-1",pod=""} 139', ("DCGM", {"gpu": "0", "UUID": "GPU-1", "pod": ""}, 139.0, None)),
        ('m{x="a\\"b\\\\c\\nd",} 1', ("m", {"x": 'a"b\\c\nd'}, 1.0, None)),
        ('m{x="a}b{c,d=e"} 1', ("m", {"x": "a}b{c,d=e"}, 1.0, None)),
        ("m 1 1794706624000", ("m", {}, 1.0, T)),
        ("m 1 1794706624.5", ("m", {}, 1.0, T + SECOND // 2)),
        ("m +Inf", ("m", {}, math.inf, None)),
        ('m_total 3 # {trace_id="x"} 1', ("m_total", {}, 3.0, None)),
    ],
)
def test_samples(line: str, expected: tuple[str, dict[str, str], float, int | None]) -> None:
    assert prometheus.parse(line) == expected


@pytest.mark.parametrize("line", ["", "m", "m NaN", 'm{x="1" 1', "m{x=1} 1", "1m 1", "m one", "m 1 2 3", "m {"])
def test_what_is_no_sample(line: str) -> None:
    assert prometheus.parse(line) is None


def test_labels_are_bounded() -> None:
    many = ",".join(f'l{i}="x"' for i in range(1000))
    assert prometheus.parse(f"m{{{many}}} 1") is None


def test_values_that_were_not_measured_give_no_point(make: Make) -> None:
    text = "DCGM_A 9223372036854775794\nDCGM_B 2147483632\nDCGM_C 140737488355328\nother 2147483632\nDCGM_D 5\n"
    assert [p.name for p in read(make(text, "prometheus"))] == ["other", "DCGM_D"]


def test_a_scrape_without_a_time_is_at_the_end(make: Make) -> None:
    (point,) = read(make("# TYPE up gauge\nup 1\n", "prometheus", resource={"host.name": "n1"}))
    assert (point.time, point.inferred, point.labels, point.source.line) == (T, True, {"host.name": "n1"}, 2)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("scrape.prom", "# timestamp: 2026-11-15T01:30:00Z\nup 1\n"),
        ("scrape.prom", "# scraped at 1794706200\nup 1\n"),
        ("scrape-20261115T013000Z.prom", "up 1\n"),
        ("metrics_2026-11-15_01-30-00.txt", "up 1\n"),
        ("dcgm.1794706200.prom", "up 1\n"),
    ],
)
def test_where_a_scrape_says_its_time(make: Make, path: str, text: str) -> None:
    (point,) = read(make(text, "prometheus", path=path))
    assert (point.time, point.inferred) == (1_794_706_200 * SECOND, False)


def test_an_exporters_own_clock_counts(make: Make) -> None:
    found = read(make("node_time_seconds 1.7947062005e+09\nup 1\n", "prometheus"))
    assert {p.time for p in found} == {1_794_706_200_500_000_000}


@pytest.mark.parametrize("between", ["# EOF\n", "", "# TYPE a counter\n", "# 2026-11-15T01:30:15Z\n"])
def test_several_scrapes_in_one_file(make: Make, between: str) -> None:
    one = 'a{x="1"} 1\na{x="2"} 2\n'
    text = ("# TYPE a counter\n" + one if "TYPE" in between else one) + between + one
    found = read(make(text, "prometheus"))
    assert len(found) == 4
    assert found[0].time < found[2].time == found[3].time if "2026" not in between else found[2].time != found[0].time
    assert found[0].time == found[1].time


def test_files_in_a_directory_are_a_series(tmp_path: Path) -> None:
    for i in (1, 2, 10):
        (tmp_path / f"{i}.prom").write_text(f"# TYPE a counter\na {i}\n")
    (tmp_path / "rank0.log").write_text("2026-11-15 01:37:04 hello\n")
    bundle = discover([tmp_path])
    found = [point for _, each in points(bundle, Counters()) for point in each]
    assert {p.value: p.time for p in found} == {10.0: T, 2.0: T - INTERVAL, 1.0: T - 2 * INTERVAL}


def test_real_scrapes(shared_data: Path) -> None:
    bundle = discover([shared_data / "peers" / "dcgm" / "samples.prom"])
    counters = Counters()
    ((_, each),) = points(bundle, counters)
    found = list(each)
    assert len(found) > 15
    assert all(p.name.startswith("DCGM_") and "gpu" in p.labels for p in found)
    assert counters.lines_unparsed == 0


@given(st.text(max_size=80))
def test_any_line(line: str) -> None:
    sample = prometheus.parse(line)
    assert sample is None or sample[0]


LINES = [
    "up 1",
    "up 2 1794706624000",
    'a:b{x="1",y="2"} -2.5e3',
    'a:b{x="1",y="2"} 7',
    'm{x="a}b{c,d=e"} 1',
    'm{x="a}b{c,d=e"} NaN',
    'm{x="1"} 3 # {trace_id="x"} 1',
    'm{x="1"} 4',
    'm{x="\\\\"} 4',
    "up1",
    "up",
    "up 1_0",
    "up 1 99999999999999999999",
    'm{x="1"',
    'm{x="1"}',
    "",
]


@given(st.lists(st.sampled_from(LINES) | st.text(alphabet='abm{}"\\ =,#1_.x\t', max_size=20), max_size=30))
def test_remembering_a_series_changes_nothing(lines: list[str]) -> None:
    families = prometheus.Families(room=40)
    assert [families.parse(line) for line in lines] == [prometheus.parse(line) for line in lines]


def test_types_travel_with_points(make: Make) -> None:
    text = "# TYPE a counter\na 1\n# TYPE b gauge\nb 1\nc 1\n# TYPE d counter\nd_total 1\n# TYPE e histogram\ne_sum 1\n"
    assert [(p.name, p.declared) for p in read(make(text, "prometheus"))] == [
        ("a", "counter"), ("b", "gauge"), ("c", ""), ("d_total", "counter"), ("e_sum", ""),
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["+Inf", "1e300", "-5", "0"])
def test_an_absurd_clock_is_not_believed(make: Make, value: str) -> None:
    (point, clock) = read(make(f"m 1\nnode_time_seconds {value}\n", "prometheus"))
    assert point.inferred
    assert point.time == clock.time == T


@pytest.mark.parametrize(
    ("host", "labels"),
    [
        ("node-7", {"host.name": "node-7"}),
        ("20261115T000000Z", {}),
        ("node-7-20261115T000000Z", {"host.name": "node-7"}),
    ],
)
def test_a_time_in_a_name_is_no_machine(make: Make, host: str, labels: dict[str, str]) -> None:
    stream = make("m 1\n", "prometheus")
    stream.resource = {"host.name": host}
    assert [p.labels for p in read(stream)] == [labels]


def test_a_scrape_without_end_is_cut(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MAX_POINTS", 3)
    counters = Counters()
    assert len(read(make("".join(f"m{i} 1\n" for i in range(10)), "prometheus"), counters)) == 3
    assert counters.lines_capped == 7


def test_a_series_that_comes_again_is_the_next_scrapes(make: Make) -> None:
    """Also where the first series of the first scrape is gone, and where a family has two parts."""
    text = (
        'a 9\nb{x="1"} 1\n# TYPE c gauge\nc{x="1"} 1\n# TYPE c gauge\nc{x="2"} 1\nb{x="1"} 2\nc{x="1"} 2\na 10\na 12\n'
    )
    found = [(p.name, p.value, (p.time - T) // INTERVAL) for p in read(make(text, "prometheus"))]
    assert found == [
        ("a", 9, -2),
        ("b", 1, -2),
        ("c", 1, -2),
        ("c", 1, -2),
        ("b", 2, -1),
        ("c", 2, -1),
        ("a", 10, -1),
        ("a", 12, 0),
    ]
