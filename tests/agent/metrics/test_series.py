"""What a target's answers become: types, names, resources, start times, marks at the end of series."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.agent.receivers.prometheus.families import payload
from tracecore.agent.receivers.prometheus.relabel import Relabel, rules
from tracecore.agent.receivers.prometheus.series import ScrapeLimits, SeriesMemory
from tracecore.signals.metrics.exposition import ExpositionError

SECOND = 1_000_000_000
START = 1_794_700_800 * SECOND
LABELS = {"job": "gpus", "instance": "node-7:9400"}


class Answers:
    """A target's memory, and its answers one by one, 10 s apart."""

    def __init__(self, relabel: list[Relabel] | None = None, labels: dict[str, str] | None = None, **more: Any) -> None:
        self.memory = SeriesMemory(labels or LABELS, {"__scheme__": "http"}, rules(relabel or []), **more)
        self.time = START - 10 * SECOND
        self.tally: Any = None

    def says(self, text: str, open_metrics: bool = False) -> dict[str, Any]:
        """Metrics by name."""
        self.time += 10 * SECOND
        families, self.tally = self.memory.read(text, self.time, open_metrics)
        return self._named(payload(families)[0])

    def silent(self) -> dict[str, Any]:
        self.time += 10 * SECOND
        return self._named(payload(self.memory.fail(self.time))[0])

    def _named(self, made: dict[str, Any]) -> dict[str, Any]:
        return {
            metric["name"]: {**metric, "resource": entry["resource"]["attributes"], "scope": scope["scope"]}
            for entry in made["resource_metrics"]
            for scope in entry["scope_metrics"]
            for metric in scope["metrics"]
        }


def points(metric: dict[str, Any]) -> list[dict[str, Any]]:
    kind = next(kind for kind in ("gauge", "sum", "histogram", "summary") if kind in metric)
    found: list[dict[str, Any]] = metric[kind]["data_points"]
    return found


def values(metric: dict[str, Any]) -> list[float | None]:
    return [None if point.get("flags") == 1 else point["as_double"] for point in points(metric)]


TEXT = """\
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0", UUID="GPU-1",pod=""} 61
DCGM_FI_DEV_GPU_TEMP{gpu="1", UUID="GPU-2",pod=""} 63.5
# TYPE errors_total counter
errors_total 4
something_else{a="b"} NaN
"""


def test_types_and_labels() -> None:
    made = Answers().says(TEXT)
    temperature = made["DCGM_FI_DEV_GPU_TEMP"]
    assert temperature["description"] == "GPU temperature (in C)."
    assert points(temperature) == [
        {"attributes": {"gpu": "0", "UUID": "GPU-1"}, "time_unix_nano": START, "as_double": 61.0},
        {"attributes": {"gpu": "1", "UUID": "GPU-2"}, "time_unix_nano": START, "as_double": 63.5},
    ]
    assert made["errors_total"]["sum"]["is_monotonic"] is True
    assert made["errors_total"]["sum"]["aggregation_temporality"] == 2
    assert made["errors_total"]["metadata"] == {"prometheus.type": "counter"}
    other = points(made["something_else"])[0]["as_double"]
    assert other != other, "a value that is not a number is one"
    assert made["something_else"]["metadata"] == {"prometheus.type": "unknown"}
    assert temperature["resource"] == {
        "service.name": "gpus",
        "server.address": "node-7",
        "service.instance.id": "node-7:9400",
        "server.port": "9400",
        "url.scheme": "http",
    }


def test_a_series_that_is_gone_is_marked_once() -> None:
    target = Answers()
    target.says("a 1\nb 2\n")
    assert values(target.says("a 1\n")["b"]) == [None]
    assert "b" not in target.says("a 1\n")
    assert values(target.says("a 1\nb 3\n")["b"]) == [3.0]
    assert target.tally.added == 1


def test_a_silent_target_marks_all_its_series() -> None:
    target = Answers()
    target.says("a 1\nb 2\n")
    made = target.silent()
    assert (values(made["a"]), values(made["b"])) == ([None], [None])
    assert target.silent() == {}
    assert values(target.says("a 1\n")["a"]) == [1.0]


def test_an_answer_that_is_none_counts_as_none() -> None:
    target = Answers()
    target.says("a 1\n")
    with pytest.raises(ExpositionError, match="no number"):
        target.says("a 1\nb two\n")
    assert values(target.silent()["a"]) == [None]


def test_what_a_broken_answer_had_is_forgotten() -> None:
    target = Answers()
    target.says("# TYPE n_total counter\nn_total 5\n")
    for turn in range(50):
        with pytest.raises(ExpositionError):
            target.says("n_total 6\n" + "".join(f'a{{n="{turn}-{n}"}} 1\n' for n in range(20)) + "broken\n")
        target.silent()
    assert len(target.memory._known) == 1
    (point,) = points(target.says("# TYPE n_total counter\nn_total 7\n")["n_total"])
    assert point["start_time_unix_nano"] == START, "the counter goes on where it was"


def starts(target: Answers, *answers: float | None) -> list[int]:
    found = []
    for value in answers:
        if value is None:
            target.silent()
            continue
        made = target.says(f"# TYPE n_total counter\nn_total {value}\n")
        found.append((points(made["n_total"])[0]["start_time_unix_nano"] - START) // SECOND)
    return found


def test_a_counter_starts_when_first_seen_and_when_it_falls() -> None:
    assert starts(Answers(), 5, 7, 7, 2, 3) == [0, 0, 0, 30, 30]


def test_a_counter_goes_on_after_a_missing_scrape() -> None:
    assert starts(Answers(), 5, None, None, 7, 1) == [0, 0, 40]


def test_gauges_have_no_start() -> None:
    assert "start_time_unix_nano" not in points(Answers().says("# TYPE g gauge\ng 1\n")["g"])[0]


HISTOGRAM = """\
# TYPE wait_seconds histogram
wait_seconds_bucket{queue="a",le="0.1"} 3
wait_seconds_bucket{queue="a",le="1"} 5
wait_seconds_bucket{queue="a",le="+Inf"} 6
wait_seconds_sum{queue="a"} 4.5
wait_seconds_count{queue="a"} 6
# TYPE pause summary
pause{quantile="0.5"} 0.2
pause{quantile="0.99"} 0.9
pause_sum 10
pause_count 30
"""


def test_histograms_and_summaries() -> None:
    target = Answers()
    made = target.says(HISTOGRAM)
    assert points(made["wait_seconds"]) == [
        {
            "attributes": {"queue": "a"},
            "start_time_unix_nano": START,
            "time_unix_nano": START,
            "count": 6,
            "sum": 4.5,
            "explicit_bounds": [0.1, 1.0],
            "bucket_counts": [3, 2, 1],
        }
    ]
    (pause,) = points(made["pause"])
    assert pause["quantile_values"] == [{"quantile": 0.5, "value": 0.2}, {"quantile": 0.99, "value": 0.9}]
    assert (pause["count"], pause["sum"]) == (30, 10.0)
    (end,) = points(target.says("")["wait_seconds"])
    assert (end["flags"], end["explicit_bounds"], end["bucket_counts"]) == (1, [0.1, 1.0], [0, 0, 0])


def test_a_histogram_that_counts_anew() -> None:
    target = Answers()
    target.says(HISTOGRAM)
    (again,) = points(target.says(HISTOGRAM.replace(" 6\n", " 5\n"))["wait_seconds"])
    assert again["start_time_unix_nano"] == START + 10 * SECOND
    assert again["bucket_counts"] == [3, 2, 0]


@pytest.mark.parametrize(
    "text",
    [
        '# TYPE h histogram\nh_bucket{le="1"} 5\nh_sum 1\n',
        '# TYPE h histogram\nh_bucket{le="1"} 5\nh_bucket{le="2"} 3\nh_count 5\n',
        "# TYPE h histogram\nh_count -1\n",
    ],
    ids=["no count", "falling buckets", "negative"],
)
def test_what_is_no_histogram_is_left_out(text: str) -> None:
    assert Answers().says(text) == {}


def test_a_bucket_without_bound_is_counted() -> None:
    target = Answers()
    made = target.says("# TYPE h histogram\nh_bucket 5\nh_count 5\n")
    assert points(made["h"])[0]["bucket_counts"] == [5]
    assert target.tally.unfit == 1


OPEN = """\
# TYPE requests counter
# UNIT requests_seconds seconds
# HELP requests of everybody
requests_total{path="/"} 5 1794700799.5 # {trace_id="0af7651916cd43dd8448eb211c80319c",user="x"} 0.67 1794700798.25
requests_created{path="/"} 1794700000.25
# TYPE build info
build_info{version="1.2"} 1
# TYPE took_seconds gauge
# UNIT took_seconds seconds
took_seconds 3
# EOF
"""


def test_open_metrics() -> None:
    made = Answers().says(OPEN, open_metrics=True)
    (point,) = points(made["requests_total"])
    assert point["start_time_unix_nano"] == 1_794_700_000_250_000_000
    assert point["time_unix_nano"] == 1_794_700_799_500_000_000
    assert point["exemplars"] == [
        {
            "time_unix_nano": 1_794_700_798_250_000_000,
            "as_double": 0.67,
            "filtered_attributes": {"user": "x"},
            "trace_id": "0af7651916cd43dd8448eb211c80319c",
        }
    ]
    assert "requests_created" not in made
    assert made["build"]["sum"]["is_monotonic"] is False
    assert made["took_seconds"]["unit"] == "s"


@pytest.mark.parametrize(
    "text",
    [
        "a 1\n",
        "a 1\n# EOF\nb 2\n",
        'a{b="c" 1\n# EOF\n',
        'a{b="c",b="d"} 1\n# EOF\n',
        "a 1 2 3\n# EOF\n",
        "a\n# EOF\n",
        "# TYPE a nonsense\na 1\n# EOF\n",
        "<html>\n# EOF\n",
        "a 1 # x\n# EOF\n",
        "1a 1\n# EOF\n",
        "a 1 99999999999999999\n# EOF\n",
    ],
)
def test_what_is_no_answer(text: str) -> None:
    with pytest.raises(ExpositionError):
        Answers().says(text, open_metrics=True)


def test_times_of_the_target() -> None:
    text = "a 1 1794700795000\n"
    assert points(Answers().says(text)["a"])[0]["time_unix_nano"] == 1_794_700_795 * SECOND
    assert points(Answers(honor_timestamps=False).says(text)["a"])[0]["time_unix_nano"] == START
    timed = Answers()
    timed.says(text)
    assert timed.says("") == {}, "who gives times of its own says itself when a series ends"
    tracked = Answers(track_timed=True)
    tracked.says(text)
    assert values(tracked.says("")["a"]) == [None]


@pytest.mark.parametrize(
    ("honor", "attributes"),
    [
        (False, {"exported_pod": "mine", "pod": "theirs", "zone": "z"}),
        (True, {"pod": "mine", "zone": "z"}),
    ],
)
def test_whose_label_wins(honor: bool, attributes: dict[str, str]) -> None:
    target = Answers(labels={**LABELS, "pod": "theirs", "zone": "z"}, honor_labels=honor)
    assert points(target.says('a{pod="mine"} 1\n')["a"])[0]["attributes"] == attributes


def test_a_federated_series_keeps_its_target() -> None:
    made = Answers(honor_labels=True).says('a{job="x",instance="node-9:1"} 1\nb{job="x"} 2\n')
    assert made["a"]["resource"]["service.instance.id"] == "node-9:1"
    assert made["b"]["resource"]["service.instance.id"] == "node-7:9400"
    other = Answers().says('a{job="x"} 1\n')["a"]
    assert (other["resource"]["service.name"], points(other)[0]["attributes"]) == ("gpus", {"exported_job": "x"})


def test_rules_for_series() -> None:
    target = Answers(
        [
            Relabel(source_labels=["__name__"], regex="go_.*", action="drop"),
            Relabel(regex="UUID", action="labeldrop"),
            Relabel(source_labels=["__name__"], regex="DCGM_(.*)", target_label="__name__", replacement="nv_$1"),
        ]
    )
    made = target.says('go_threads 9\nDCGM_X{gpu="0",UUID="u"} 1\n')
    assert list(made) == ["nv_X"]
    assert points(made["nv_X"])[0]["attributes"] == {"gpu": "0"}
    assert (target.tally.scraped, target.tally.kept) == (2, 1)


def test_series_that_rules_make_alike_are_one() -> None:
    target = Answers([Relabel(regex="gpu", action="labeldrop")])
    for _ in range(2):
        assert values(target.says('a{gpu="0"} 1\na{gpu="1"} 2\n')["a"]) == [1.0]
        assert target.tally.repeated == 1
    assert values(target.says('a{gpu="1"} 2\n')["a"]) == [2.0], "it is the same series"
    target = Answers()
    assert values(target.says('a{gpu="0"} 1\na{gpu="0"} 2\n')["a"]) == [1.0]
    assert target.tally.repeated == 1


def test_target_information_is_the_resources() -> None:
    made = Answers().says('target_info{service_version="3"} 1\na 1\n')
    assert list(made) == ["a"]
    assert made["a"]["resource"]["service_version"] == "3"


def test_scopes() -> None:
    made = Answers().says('a{otel_scope_name="lib",x="y"} 1\n')
    assert made["a"]["scope"]["name"] == "lib"
    assert points(made["a"])[0]["attributes"] == {"x": "y"}


def test_a_metric_that_changes_its_type() -> None:
    target = Answers()
    target.says("# TYPE a gauge\na 1\n")
    assert "sum" in target.says("# TYPE a counter\na 2\n")["a"]


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (ScrapeLimits(samples=2), "a 1\nb 1\nc 1\n"),
        (ScrapeLimits(labels=3), 'a{b="1",c="2"} 1\n'),
        (ScrapeLimits(name=9), 'a{long_label_name="1"} 1\n'),
        (ScrapeLimits(value=12), 'a{b="0123456789abc"} 1\n'),
        (ScrapeLimits(), "a{" + ",".join(f'l{n}="x"' for n in range(300)) + "} 1\n"),
        (ScrapeLimits(), 'a{b="' + "x" * 300_000 + '"} 1\n'),
    ],
)
def test_too_much(limits: ScrapeLimits, text: str) -> None:
    with pytest.raises(ExpositionError):
        Answers(limits=limits).says(text)


def test_series_that_come_and_go_are_forgotten() -> None:
    target = Answers([Relabel(source_labels=["__name__"], regex="dropped.*", action="drop")])
    for scrape in range(200):
        target.says("".join(f'a{{n="{scrape}-{n}"}} 1\n' for n in range(20)) + f"h{scrape}_count 1\nkept 1\n")
    memory = target.memory
    assert len(memory._known) == 22
    assert len(memory._places) == 1


def test_trimmed_names() -> None:
    text = "# TYPE a counter\na_total 1\n# TYPE t_seconds gauge\n# UNIT t_seconds seconds\nt_seconds 1\n# EOF\n"
    assert sorted(Answers(trim=True).says(text, open_metrics=True)) == ["a", "t"]
