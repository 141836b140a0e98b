"""Prometheus' rules for labels."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.agent.receivers.prometheus.options import ScrapeConfig, StaticConfig
from tracecore.agent.receivers.prometheus.relabel import Relabel, rules
from tracecore.agent.receivers.prometheus.target import target

SECOND = 1_000_000_000
LABELS = {"__address__": "10.0.0.7:9100", "a": "foo", "b": "bar", "__meta_rack": "R1"}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"source_labels": ["a"], "target_label": "c"}, {"c": "foo"}),
        ({"source_labels": ["a", "b"], "target_label": "c"}, {"c": "foo;bar"}),
        ({"source_labels": ["a", "b"], "separator": "-", "target_label": "c"}, {"c": "foo-bar"}),
        ({"source_labels": ["a"], "regex": "f(o+)", "target_label": "c", "replacement": "x${1}y"}, {"c": "xooy"}),
        ({"source_labels": ["a"], "regex": "f(?P<rest>.*)", "target_label": "c", "replacement": "$rest"}, {"c": "oo"}),
        ({"source_labels": ["a"], "regex": "oo", "target_label": "c"}, {}),
        ({"source_labels": ["a"], "target_label": "b", "replacement": ""}, {"b": None}),
        ({"source_labels": ["a"], "target_label": "c", "replacement": "$9"}, {}),
        ({"source_labels": ["a"], "target_label": "c", "replacement": "$$1"}, {"c": "$1"}),
        ({"source_labels": ["a"], "target_label": "${1}_x"}, {"foo_x": "foo"}),
        ({"source_labels": ["a"], "target_label": "$1-"}, {}),
        ({"target_label": "c", "replacement": "fixed"}, {"c": "fixed"}),
        ({"action": "labelmap", "regex": "__meta_(.*)"}, {"rack": "R1"}),
        ({"action": "labeldrop", "regex": "a|b"}, {"a": None, "b": None}),
        ({"action": "labelkeep", "regex": "a|__.*"}, {"b": None}),
        ({"action": "uppercase", "source_labels": ["a"], "target_label": "a"}, {"a": "FOO"}),
        ({"action": "lowercase", "source_labels": ["__meta_rack"], "target_label": "c"}, {"c": "r1"}),
        # The last eight bytes of the MD5 of "foo".
        ({"action": "hashmod", "source_labels": ["a"], "target_label": "c", "modulus": 1000}, {"c": "696"}),
        ({"action": "keep", "source_labels": ["a"], "regex": "foo"}, {}),
        ({"action": "keep", "source_labels": ["a"], "regex": "fo"}, None),
        ({"action": "drop", "source_labels": ["a"], "regex": "f.*"}, None),
        ({"action": "drop", "source_labels": ["a"], "regex": "f"}, {}),
        ({"action": "keepequal", "source_labels": ["a"], "target_label": "b"}, None),
        ({"action": "dropequal", "source_labels": ["a"], "target_label": "b"}, {}),
    ],
)
def test_actions(rule: dict[str, Any], expected: dict[str, str | None] | None) -> None:
    found = rules([Relabel(**rule)])(dict(LABELS))
    if expected is None:
        assert found is None
        return
    changed = {**LABELS, **expected}
    assert found == {name: value for name, value in changed.items() if value is not None}


def job(**more: Any) -> ScrapeConfig:
    more = {"scrape_interval": 15 * SECOND, "scrape_timeout": 10 * SECOND, **more}
    return ScrapeConfig(job_name="gpus", static_configs=[StaticConfig(targets=["a:1"])], **more)


def test_rules_make_the_target() -> None:
    found = target(
        job(
            params={"module": ["x"]},
            relabel_configs=[
                Relabel(source_labels=["__address__"], regex="(.*):.*", target_label="__address__", replacement="$1:9"),
                Relabel(target_label="__scheme__", replacement="https"),
                Relabel(target_label="__metrics_path__", replacement="/probe"),
                Relabel(target_label="__param_module", replacement="y"),
                Relabel(target_label="__scrape_interval__", replacement="1m"),
                Relabel(source_labels=["__meta_rack"], target_label="rack"),
            ],
        ),
        {"__address__": "n:1", "__meta_rack": "r1", "zone": "z"},
    )
    assert found is not None
    assert found.url == "https://n:9/probe?module=y"
    assert found.labels == {"job": "gpus", "instance": "n:9", "rack": "r1", "zone": "z"}
    assert (found.interval, found.timeout) == (60 * SECOND, 10 * SECOND)


def test_the_instance_can_be_named() -> None:
    found = target(
        job(relabel_configs=[Relabel(target_label="instance", replacement="node-7")]), {"__address__": "n:1"}
    )
    assert found is not None
    assert found.labels["instance"] == "node-7"


@pytest.mark.parametrize(
    ("label", "value"),
    [("__address__", ""), ("__address__", "a/b:1"), ("__scheme__", "file"), ("__scrape_timeout__", "1h")],
)
def test_what_is_no_target(label: str, value: str) -> None:
    with pytest.raises(ValueError, match=r"no |longer"):
        target(job(), {"__address__": "n:1", label: value})
