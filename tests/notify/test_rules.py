# ruff: noqa: E501  rows of a table stay on one line
"""Routes, matchers, inhibition and times mean what they mean in Alertmanager."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, process_time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracecore.cli.main import main
from tracecore.notify.config import FileError, read
from tracecore.notify.inhibition import Inhibition, InhibitRule
from tracecore.notify.intervals import TimeInterval, ends
from tracecore.notify.labels import labels_of
from tracecore.notify.matchers import Labels, all_match, parse
from tracecore.notify.message import NotificationMessage, ShownIncident
from tracecore.notify.planning import GroupedIncident, plan
from tracecore.notify.rendering import BadTemplate, check, example, render
from tracecore.notify.routes import SECOND, Route, matching
from tracecore.store.people import BadMatcher
from tracecore.store.people import check as check_silence
from tracecore.store.records import Matcher

RECEIVERS = "receivers: [{name: a}, {name: b}, {name: c}]\n"


def config(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "notify.yaml"
    path.write_text(text)
    return read(path)


@pytest.mark.parametrize(
    ("text", "labels", "holds"),
    [
        ('job="a"', {"job": ["a"]}, True),
        ("job=a", {"job": ["a"]}, True),
        ('job=~"a.*"', {"job": ["abc"]}, True),
        ('job=~"b"', {"job": ["abc"]}, False),
        ('job!="a"', {}, True),
        ('job=""', {}, True),
        ('node="n2"', {"node": ["n1", "n2"]}, True),
        ('node!="n2"', {"node": ["n1", "n2"]}, False),
        ('node!~"n[12]"', {"node": ["n3"]}, True),
        ('headline="say \\"hi\\""', {"headline": ['say "hi"']}, True),
    ],
)
def test_matchers(text: str, labels: Labels, holds: bool) -> None:
    assert all_match([parse(text)], labels) is holds


@pytest.mark.parametrize("text", ["", "job", "=a", 'job=~"("', 'job="a" b', 'job="\\x"', "a" * 2000])
def test_what_is_no_matcher(text: str) -> None:
    with pytest.raises(BadMatcher):
        parse(text)


TREE = (
    RECEIVERS
    + """
route:
  receiver: a
  routes:
    - {receiver: b, matchers: ['class="code"'], continue: true}
    - receiver: c
      matchers: ['job=~"vision.*"']
      routes:
        - {receiver: a, matchers: ['severity="critical"'], group_by: ['...']}
    - {receiver: b, matchers: ['job="vision-2"']}
"""
)


@pytest.mark.parametrize(
    ("labels", "paths"),
    [
        ({"job": ["x"]}, ["0"]),
        ({"job": ["vision-1"]}, ["0.1"]),
        ({"job": ["vision-2"]}, ["0.1"]),
        ({"job": ["vision-1"], "severity": ["critical"]}, ["0.1.0"]),
        ({"job": ["vision-1"], "class": ["code"]}, ["0.0", "0.1"]),
        ({"job": ["x"], "class": ["code"]}, ["0.0"]),
    ],
)
def test_the_first_child_that_matches_takes_it(tmp_path: Path, labels: Labels, paths: list[str]) -> None:
    tree = config(tmp_path, TREE).route
    assert [route.path for route in matching(tree, labels)] == paths


def test_routes_inherit_what_they_do_not_say(tmp_path: Path) -> None:
    tree = config(tmp_path, TREE.replace("receiver: a\n", "receiver: a\n  group_wait: 7s\n", 1)).route
    child = tree.routes[1].routes[0]
    assert (child.group_wait, tree.routes[1].group_by, child.group_by) == (7 * SECOND, ["job"], ["..."])


def rule(equal: list[str]) -> InhibitRule:
    return InhibitRule(
        source_matchers=[parse('pattern="gpu_fault"')], target_matchers=[parse('severity="warning"')], equal=equal
    )


@pytest.mark.parametrize(
    ("equal", "source", "target", "inhibits"),
    [
        (["node"], {"node": ["n1"]}, {"node": ["n1"]}, True),
        (["node"], {"node": ["n1", "n2"]}, {"node": ["n2", "n3"]}, True),
        (["node"], {"node": ["n1"]}, {"node": ["n2"]}, False),
        (["node"], {"node": ["n1"]}, {}, False),
        # Alertmanager's trap: nothing on both sides is not the same node.
        (["node"], {}, {}, False),
        (["node", "cluster"], {"node": ["n1"]}, {"node": ["n1"]}, True),
        ([], {}, {}, True),
    ],
)
def test_inhibition(equal: list[str], source: Labels, target: Labels, inhibits: bool) -> None:
    active = [("source", source | {"pattern": ["gpu_fault"]}), ("target", target | {"severity": ["warning"]})]
    found = Inhibition(active, [rule(equal)]).inhibitor("target", active[1][1])
    assert found == ("source" if inhibits else "")


def test_two_that_are_source_and_target_do_not_inhibit_each_other() -> None:
    both = {"pattern": ["gpu_fault"], "severity": ["warning"], "node": ["n1"]}
    active = [("one", both), ("other", dict(both))]
    inhibition = Inhibition(active, [rule(["node"])])
    assert not inhibition.inhibitor("one", both)
    assert not inhibition.inhibitor("other", both)


def test_thousands_of_open_incidents_inhibit_in_time() -> None:
    active: list[tuple[str, Labels]] = [
        (f"source-{n}", {"pattern": ["gpu_fault"], "node": [f"n{n}"]}) for n in range(10_000)
    ]
    inhibition = Inhibition(active, [rule(["node"])])
    begun = process_time()
    for n in range(0, 10_000, 10):
        assert inhibition.inhibitor("target", {"severity": ["warning"], "node": [f"n{n}"]}) == f"source-{n}"
    assert process_time() - begun < 2


AM = "receivers: [{{name: a, alertmanager_configs: [{{url: '{}'}}]}}]\nroute: {{receiver: a}}\n"
INTERVAL = "receivers: [{{name: a}}]\nroute: {{receiver: a}}\ntime_intervals: [{{name: x, time_intervals: [{{{}}}]}}]\n"


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


@pytest.mark.parametrize(
    ("interval", "time", "holds"),
    [
        (TimeInterval(times=[(480, 1020)]), "2026-11-16T08:00", True),
        (TimeInterval(times=[(480, 1020)]), "2026-11-16T17:00", False),
        (TimeInterval(times=[(480, 1020)], location="America/New_York"), "2026-11-16T08:00", False),
        (TimeInterval(times=[(480, 1020)], location="America/New_York"), "2026-11-16T14:00", True),
        (TimeInterval(weekdays=[(6, 6), (0, 0)]), "2026-11-15T12:00", True),
        (TimeInterval(weekdays=[(6, 6), (0, 0)]), "2026-11-16T12:00", False),
        (TimeInterval(days_of_month=[(-3, -1)]), "2026-02-26T12:00", True),
        (TimeInterval(days_of_month=[(-3, -1)]), "2026-02-25T12:00", False),
        (TimeInterval(days_of_month=[(31, 31)]), "2026-11-30T12:00", False),
        (TimeInterval(months=[(11, 12)], years=[(2026, 2026)]), "2026-11-16T12:00", True),
        (TimeInterval(months=[(11, 12)], years=[(2026, 2026)]), "2027-11-16T12:00", False),
        (TimeInterval(starts_at=at("2026-11-16T08:00")), "2026-11-16T07:59", False),
        (TimeInterval(ends_at=at("2026-11-16T08:00")), "2026-11-16T08:00", False),
    ],
)
def test_time_intervals(interval: TimeInterval, time: str, holds: bool) -> None:
    assert interval.holds(at(time)) is holds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("route: {receiver: a}\n", "1:1: 'receivers' is missing"),
        (RECEIVERS + "route: {receiver: z}\n", "2:19: there is no receiver 'z'"),
        (RECEIVERS + "route: {receiver: a, matchers: ['job=\"x\"']}\n", "takes every incident"),
        (RECEIVERS + "route: {receiver: a, group_by: [jobb]}\n", "2:33: 'jobb' is none of"),
        (RECEIVERS + "route: {receiver: a, group_wait: soon}\n", "2:34: "),
        (RECEIVERS + "route: {reciever: a}\n", "2:9: no such key 'reciever'; did you mean 'receiver'?"),
        (RECEIVERS + "route: {receiver: a, mute_time_intervals: [night]}\n", "there is no time interval 'night'"),
        ("receivers: [{name: a}, {name: a}]\nroute: {receiver: a}\n", "'a' is given twice"),
        ("receivers: [{name: a, slack_configs: [{channel: x}]}]\nroute: {receiver: a}\n", "slack needs either"),
        (
            "receivers: [{name: a, pagerduty_configs: [{routing_key: abc}]}]\nroute: {receiver: a}\n",
            "a secret does not",
        ),
        ("receivers: [{name: a, pagerduty_configs: [{}]}]\nroute: {receiver: a}\n", "(or routing_key_file) is missing"),
        (
            "receivers: [{name: a, webhook_configs: [{url_file: /nonexistent}]}]\nroute: {receiver: a}\n",
            "cannot read /nonexistent: No such file or directory",
        ),
        (RECEIVERS + "route: {receiver: a}\ntemplates: {title: '{{ incidents[0].headline '}\n", "the template"),
        (RECEIVERS + "route: {receiver: a}\ntemplates: {title: '{{ ().__class__.__mro__ }}'}\n", "the template"),
        (
            RECEIVERS + "route: {receiver: a}\ntemplates: {title: '{{ headline }}'}\n",
            "3:20: the template cannot be used: there is no 'headline'",
        ),
        (AM.format("http://[::1"), "1:46: alertmanager's url is not a URL"),
        (AM.format("http://"), "expected http:// or https:// and a host"),
        (AM.format("http://h:99999"), "Port out of range"),
        (AM.format("http://a b/"), "it has a space in it"),
        (AM.format("http://am/api/v2/alerts"), "without /api/"),
        (
            INTERVAL.format("location: Europe/Berlyn"),
            "there is no time zone 'Europe/Berlyn'; did you mean 'Europe/Berlin'?",
        ),
        (INTERVAL.format("days_of_month: ['-1:5']"), "a range that begins with a day before the month's end"),
        (INTERVAL.format("days_of_month: ['31:-31']"), "the range ends before it begins"),
        (INTERVAL.format("weekdays: ['saturday:sunday']"), "the range ends before it begins"),
        (
            "receivers: [{name: a, email_configs: [{to: ['ü@e.com'], from: a@e.com, smarthost: 'h:25'}]}]\n"
            "route: {receiver: a}\n",
            "are mail addresses",
        ),
        (
            RECEIVERS + "route: {receiver: a}\ninhibit_rules: [{source_matchers: ['x']}]\n",
            "'target_matchers' is missing",
        ),
    ],
)
def test_mistakes_are_told_with_their_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FileError) as caught:
        config(tmp_path, text)
    assert said in str(caught.value)
    assert "notify.yaml:" in str(caught.value)


def test_all_mistakes_are_told_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = """\
receivers:
  - {name: a, slack_configs: [{channel: x}], pager_configs: []}
  - {nme: b}
route:
  receiver: z
  group_wait: soon
  group_by: [job, jobb]
  routes:
    - {matchers: ['job=~"("', 'colour="red"'], mute_time_intervals: [night]}
inhibit_rules: [{source_matchers: ['x']}]
time_intervals:
  - name: once
    time_intervals: [{starts_at: "2026-12-02T00:00:00Z", ends_at: "2026-12-01T00:00:00Z"}]
"""
    with pytest.raises(FileError) as caught:
        config(tmp_path, text)
    told = [line.partition("notify.yaml:")[2] for line in str(caught.value).splitlines()]
    assert [line.split(": ")[0] for line in told] == [
        "2:31", "2:46", "3:5", "3:6", "5:13", "6:15", "7:19", "9:19", "9:31", "9:70", "10:17", "10:36", "13:67",
    ]  # fmt: skip
    assert "9:19: '(' is not a regular expression: missing ): (" in told
    assert "13:67: ends_at is not after starts_at: this window never begins" in told
    assert capfd.readouterr().err == "", "RE2 does not write by itself"


def test_all_mistakes_of_one_entry_are_told_at_once(tmp_path: Path) -> None:
    entry = "{to: oncall@example.org, auth_password: secret, require_tls: sometimes, smart_host: mail:25}"
    with pytest.raises(FileError) as caught:
        config(tmp_path, f"receivers:\n  - name: a\n    email_configs: [{entry}]\nroute: {{receiver: a}}\n")
    assert [line.partition("notify.yaml:")[2] for line in str(caught.value).splitlines()] == [
        "3:21: 'from' is missing",
        "3:21: 'smarthost' is missing",
        "3:26: to: Expected `array`, got `str`",
        "3:61: a secret does not stand in this file: use auth_password_file or ${env:NAME}",
        "3:82: require_tls: Expected `bool`, got `str`",
        "3:93: no such key 'smart_host'; did you mean 'smarthost'?",
    ]


def test_a_window_that_no_route_uses_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notify.yaml"
    windows = "time_intervals: [{name: night, time_intervals: [{weekdays: [sunday]}]}]\n"
    path.write_text(RECEIVERS + "route: {receiver: a}\n" + windows)
    assert main(["notify", "check", str(path)]) == 0
    assert "The time interval 'night' is used by no route" in capsys.readouterr().err


def test_the_example_of_the_docs_can_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "notifications.md").read_text()
    secret = tmp_path / "secret"
    secret.write_text("x")
    text = re.sub(r"/run/secrets/\w+", str(secret), page.split("```yaml\n")[1].split("```")[0])
    (tmp_path / "notify.yaml").write_text(text)
    assert main(["notify", "check", str(tmp_path / "notify.yaml")]) == 0
    assert capsys.readouterr().err == "", "no warning either"


def test_routes_are_shown_with_the_labels_that_the_server_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notify.yaml"
    below = "{receiver: b, matchers: ['namespace=\"vision\"', 'severity=\"critical\"']}"
    path.write_text(f"{RECEIVERS}route: {{receiver: a, routes: [{below}]}}\n")
    assert main(["notify", "routes", "--config", str(path), "job=vision/llm"]) == 0
    assert capsys.readouterr().out.startswith("b (route 0.0)")


def test_silences_take_the_labels_of_routes() -> None:
    for name in ("team", "namespace", "cluster", "severity"):
        check_silence([Matcher(name=name, value="x")])
    with pytest.raises(BadMatcher, match="is not one of"):
        check_silence([Matcher(name="colour", value="x")])


def test_templates_of_one_s_own() -> None:
    check("{{ firing }} open: {% for one in incidents %}{{ one.headline }} {{ one.labels.team }} {% endfor %}")
    check("{{ '%5d' % firing }} {{ '{:>5}'.format(more) }} {{ 2 * firing }} {{ incidents[0].headline | truncate(80) }}")


@pytest.mark.parametrize(
    "text",
    [
        "{{ incidents.clear() }}",
        "{{ nothing.at.all }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ self.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% for x in range(10000000000) %}{% endfor %}",
        "{% for x in range(9999) %}{% for y in range(9999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{{ 'a' * 10000000000 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (9999999999, 1) }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 9999999999) }}",
        "{{ 'a'.center(9999999999) }}",
        "{{ 1 | center(9999999999) }}",
        "{{ 'a' | indent(9999999999, true) }}",
    ],
)
def test_a_hostile_template_is_refused_soon(text: str) -> None:
    begun = monotonic()
    with pytest.raises(BadTemplate):
        check(text)
    assert monotonic() - begun < 5


def test_a_template_that_fails_is_replaced_and_named(caplog: pytest.LogCaptureFixture) -> None:
    message = _message()
    render(message, {"title": "{{ incidents[7].headline }}", "text": "{% for x in range(9999) %}word {% endfor %}"})
    assert message.title == "a (example-job)"
    assert "a template was not used" in caplog.text
    assert len(message.text) <= 20_000, "a long text is cut"


def _message() -> NotificationMessage:
    shown = msgspec.convert(example() | {"headline": "a"}, ShownIncident)
    return NotificationMessage(
        key="k", delivery="d", reason="opened", status="firing", receiver="r", group={}, incidents=[shown], new=[],
        more=0, firing=1, resolved=0,
    )  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    begin=st.integers(0, 1438),
    length=st.integers(1, 1440),
    day=st.sampled_from(
        ["2026-03-08", "2026-03-29", "2026-10-25", "2026-11-01", "2026-04-05", "2026-02-28", "2028-02-29"]
    ),
    minute=st.integers(-1440, 1440),
)
def test_the_end_of_a_window_is_its_first_minute_outside(
    zone: str, begin: int, length: int, day: str, minute: int
) -> None:
    """Also in nights in which a clock is changed, and across midnight and the ends of months."""
    end = begin + length
    parts = [(begin, min(end, 1440))] + ([(0, end - 1440)] if end > 1440 else [])
    window = [TimeInterval(times=[part], location=zone) for part in parts]
    now = at(f"{day}T00:00") + minute * 60 * SECOND
    if not any(one.holds(now) for one in window):
        return
    found = ends(window, now)
    later = (now + step * 60 * SECOND for step in range(1, 3 * 1440))
    expected = next((time for time in later if not any(one.holds(time) for one in window)), None)
    assert found == expected or (expected is None and found is not None and found > now)


def test_labels(tmp_path: Path) -> None:
    rules = config(
        tmp_path,
        RECEIVERS
        + """
route: {receiver: a}
labels:
  - set: {cluster: east}
  - {set: {team: vision}, matchers: ['namespace="ml"']}
""",
    ).labels
    found = labels_of(
        id="i", job="ml/train", pattern="", failure_class="code", fingerprint="f", state="open", tenant="",
        nodes=["n1"], document={}, rules=rules,
    )  # fmt: skip
    assert found["team"] == ["vision"]
    assert (found["namespace"], found["cluster"], found["severity"]) == (["ml"], ["east"], ["critical"])
    assert "pattern" not in found


ROUTE = Route(path="0", receiver="a", group_by=["job"], group_wait=10, group_interval=100, repeat_interval=1000)


def member(**more: Any) -> GroupedIncident:
    return GroupedIncident(**{"id": "i", "joined": 0, "standing": "firing", "digest": "d", **more})


@pytest.mark.parametrize(
    ("members", "now", "more", "reason", "next"),
    [
        ([member()], 9, {}, None, 10),
        ([member()], 10, {}, "opened", None),
        ([member(standing="suppressed")], 10, {}, None, None),
        ([member(standing="resolved")], 10, {}, None, None),
        # A second incident of a group waits for the interval since the last message people noticed.
        ([member(told="firing", told_digest="d"), member(id="j", joined=50)], 99, {"sent": 10, "noticed": 10}, None, 110),
        ([member(told="firing", told_digest="d"), member(id="j", joined=50)], 110, {"sent": 10, "noticed": 10}, "joined", None),
        # Nothing lasts: the group begins anew.
        ([member(standing="resolved", told="resolved"), member(id="j", joined=50)], 60, {"sent": 40, "noticed": 40}, "joined", None),
        ([member(told="firing", told_digest="d")], 1009, {"sent": 10, "noticed": 10}, None, 1010),
        ([member(told="firing", told_digest="d")], 1010, {"sent": 10, "noticed": 10}, "repeated", None),
        # A reminder that is due does not swallow what is new.
        ([member(told="firing", told_digest="d"), member(id="j", joined=1005)], 1012, {"sent": 10, "noticed": 10}, None, 1015),
        ([member(told="firing", told_digest="d"), member(id="j", joined=1005)], 1015, {"sent": 10, "noticed": 10}, "joined", None),
        ([member(told="firing", told_digest="d", acknowledged=True)], 5000, {"sent": 10, "noticed": 10}, None, None),
        # Who cannot be edited is not told of an improvement, and of a resolution after the interval.
        ([member(told="firing", told_digest="old")], 60, {"sent": 10, "noticed": 10, "edits": False}, None, 1010),
        ([member(standing="resolved", told="firing")], 60, {"sent": 10, "noticed": 10, "edits": False}, None, 110),
        ([member(standing="resolved", told="firing")], 110, {"sent": 10, "noticed": 10, "edits": False}, "resolved", None),
        ([member(standing="resolved", told="firing")], 10**10, {"sent": 10, "noticed": 10, "send_resolved": False}, None, None),
    ],
)  # fmt: skip
def test_plans(
    members: list[GroupedIncident], now: int, more: dict[str, Any], reason: str | None, next: int | None
) -> None:
    found = plan(members, ROUTE, now, **{"sent": None, "noticed": None, "edits": True, **more})
    assert found.reason == reason
    if reason is None and not any(one.standing == "suppressed" for one in members):
        assert found.next == next
