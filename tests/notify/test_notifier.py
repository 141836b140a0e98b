"""One incident, one page: told once, updated in place, through receivers that misbehave."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracecore.notify.unsent import unsent
from tracecore.store.records import Matcher

from .conftest import SECOND, Mailbox, Receiver, World

Make = Callable[[str], World]


@pytest.fixture
def slack(world: Make, receiver: Receiver, tmp_path: Path) -> World:
    (tmp_path / "token").write_text("xoxb-test\n")
    return world(f"""
external_url: https://tracecore.example.com
receivers:
  - name: oncall
    slack_configs:
      - channel: "#training"
        bot_token_file: {tmp_path / "token"}
        api_url: {receiver.url}/api
route: {{receiver: oncall, group_by: [job], group_wait: 10s, group_interval: 1m, repeat_interval: 1h}}
""")


def test_nothing_is_said_before_the_group_wait_is_over(slack: World, receiver: Receiver) -> None:
    slack.put()
    slack.run(9)
    assert receiver.requests == []
    slack.run(2)
    (posted,) = receiver.bodies("chat.postMessage")
    assert posted["channel"] == "#training"
    assert "Rank 2 never entered all_reduce" in posted["text"]
    text = posted["blocks"][1]["text"]["text"]
    for said in ("Where: node node-17; rank 2, job vision/train-1", "Do: Look at rank 2.", "Retry: retry 1 of 3",
                 "https://tracecore.example.com/incidents/incident-1"):  # fmt: skip
        assert said in text


def test_a_better_diagnosis_changes_the_message_and_wakes_nobody(slack: World, receiver: Receiver) -> None:
    slack.put(headline="Job stalled, cause not yet known", state="open", root_cause=None)
    slack.run(12)
    slack.put(revision=2, headline="GPU 3 of node-17 fell off the bus", root_cause={"pattern": "gpu_fault"})
    slack.run(5)
    assert len(receiver.bodies("chat.postMessage")) == 1
    (edited,) = receiver.bodies("chat.update")
    assert edited["ts"] == "1.0"
    assert "fell off the bus" in edited["text"]
    slack.run(600, step=10)
    assert len(receiver.bodies()) == 2, "nothing new, nothing said"


def test_resolution_edits_the_message_and_keeps_the_facts(slack: World, receiver: Receiver) -> None:
    slack.put()
    slack.run(12)
    slack.put(revision=2, state="resolved")
    slack.run(5)
    edited = receiver.bodies("chat.update")[-1]
    assert edited["text"].startswith("Resolved: Rank 2 never entered")
    assert "Look at rank 2" in edited["blocks"][1]["text"]["text"]
    reply = receiver.bodies("chat.postMessage")[1]
    assert (reply["thread_ts"], reply["reply_broadcast"]) == ("1.0", False)


def test_a_retry_that_fails_joins_the_thread(slack: World, receiver: Receiver) -> None:
    slack.put("1")
    slack.run(12)
    slack.put("1", revision=2, state="resolved")
    slack.run(5)
    slack.clock.forward(3600)
    slack.put("2", attempt=1)
    slack.run(15)
    reply = receiver.bodies("chat.postMessage")[-1]
    assert (reply["thread_ts"], reply["reply_broadcast"]) == ("1.0", True)
    assert "(2)" in reply["text"]
    assert len({body.get("thread_ts") for body in receiver.bodies("chat.postMessage")}) == 2, "one page, one thread"


def test_hours_after_its_resolution_a_thread_takes_no_more(slack: World, receiver: Receiver) -> None:
    slack.put("1")
    slack.run(12)
    slack.put("1", revision=2, state="resolved")
    slack.run(5)
    slack.run(7 * 3600, step=600)
    slack.put("2")
    slack.run(15)
    assert "thread_ts" not in receiver.bodies("chat.postMessage")[-1]


def test_an_incident_nobody_acknowledged_is_said_again(slack: World, receiver: Receiver) -> None:
    slack.put()
    slack.run(12)
    slack.run(3700, step=60)
    assert "Still open" in receiver.bodies("chat.postMessage")[1]["text"]
    slack.store.people.act("incident-1", "acknowledge", "ada", slack.clock.now)
    slack.run(2 * 3600, step=60)
    assert len(receiver.bodies("chat.postMessage")) == 2
    assert "Acknowledged by ada" in receiver.bodies("chat.update")[-1]["blocks"][1]["text"]["text"]


def test_text_of_logs_is_never_markup(slack: World, receiver: Receiver) -> None:
    slack.put(headline="<!channel> *boom* <https://evil|click> & more")
    slack.run(12)
    text = receiver.bodies("chat.postMessage")[0]["blocks"][0]["text"]["text"]
    assert "<" not in text
    assert "&lt;!channel&gt;" in text


def test_reclassification_before_and_after_telling_makes_no_second_page(world: Make, receiver: Receiver) -> None:
    _set_hook(receiver)
    made = world("""
receivers:
  - {name: infra, webhook_configs: [{url: "${env:NOTIFY_HOOK}"}]}
  - {name: code, webhook_configs: [{url: "${env:NOTIFY_HOOK}"}]}
route:
  receiver: code
  group_by: [pattern]
  group_wait: 5s
  routes:
    - {receiver: infra, matchers: ['class="infrastructure"']}
""")
    made.put(failure={"class": "code"})
    made.run(2)
    made.put(revision=2)
    made.run(10)
    (first,) = receiver.bodies()
    assert (first["receiver"], first["group"]) == ("infra", {"pattern": "nccl_hang"})
    made.put(revision=3, root_cause={"pattern": "gpu_fault"})
    made.run(5)
    told = receiver.bodies()
    assert [body["reason"] for body in told] == ["opened", "updated"]
    assert {body["key"] for body in told} == {"incident-1"}


def _set_hook(receiver: Receiver) -> None:
    os.environ["NOTIFY_HOOK"] = receiver.url


def hook(receiver: Receiver, more: str = "", secret: str = "") -> str:
    _set_hook(receiver)
    return f"""
receivers:
  - name: programs
    webhook_configs: [{{url: "${{env:NOTIFY_HOOK}}"{secret}}}]
route: {{receiver: programs, group_by: [job], group_wait: 0s, group_interval: 10s, repeat_interval: 1h}}
{more}
"""


def test_a_receiver_that_fails_is_asked_again_with_the_same_key(world: Make, receiver: Receiver) -> None:
    made = world(hook(receiver))
    receiver.faults = [500, 429, "drop", "deaf"]
    receiver.headers = {"Retry-After": "7"}
    made.put()
    made.run(60)
    keys = [headers["Idempotency-Key"] for _, headers, _ in receiver.requests]
    # The deaf one was taken: whoever asks twice gives the key by which it is recognised.
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert made.notifier.counts == {"retried": 4, "sent": 1}
    detail = made.store.incidents.get("incident-1")
    assert detail is not None
    (told,) = detail.notifications
    assert (told.receiver, told.state) == ("programs (webhook/0)", "sent")


def test_retry_after_is_obeyed(world: Make, receiver: Receiver) -> None:
    made = world(hook(receiver))
    receiver.faults, receiver.headers = [429], {"Retry-After": "30"}
    made.put()
    made.run(29)
    assert receiver.requests == []
    made.run(3)
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("wait", ["nan", "inf", "-5", "soon", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_retry_after_that_means_nothing_does_not_hold_up_the_retry(
    world: Make, receiver: Receiver, wait: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = world(hook(receiver))
    receiver.faults, receiver.headers = [429], {"Retry-After": wait}
    made.put()
    made.run(3700 if wait == "inf" else 3, step=100 if wait == "inf" else 1)
    assert len(receiver.requests) == 1
    assert "could not be stored" not in caplog.text


def test_an_answer_that_drips_ends_in_time(world: Make, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    from tracecore.notify import http

    monkeypatch.setattr(http.post, "__defaults__", (None, 1.0))
    made = world(hook(receiver))
    receiver.faults = ["drip"]
    made.put()
    begun = time.monotonic()
    made.run(1)
    assert time.monotonic() - begun < 5
    assert made.notifier.counts == {"sent": 1}, "its status was heard"


def test_every_message_about_an_incident_is_kept(world: Make, receiver: Receiver) -> None:
    made = world(hook(receiver))
    made.put()
    made.run(2)
    made.run(3700, step=60)
    made.store.people.act("incident-1", "resolve", "ada", made.clock.now)
    made.run(20)
    detail = made.store.incidents.get("incident-1")
    assert detail is not None
    assert [one.reason for one in reversed(detail.notifications)] == ["opened", "repeated", "resolved"]
    assert detail.notifications[0].title == "Resolved: Rank 2 never entered all_reduce (1) (vision/train-1)"
    assert len({one.sent_at for one in detail.notifications}) == 3


def test_what_a_receiver_refuses_is_shown_and_tried_with_the_next_message(world: Make, receiver: Receiver) -> None:
    made = world(hook(receiver))
    receiver.faults = [400]
    made.put()
    made.run(2)
    detail = made.store.incidents.get("incident-1")
    assert detail is not None
    assert (detail.notifications[0].state, detail.notifications[0].error) == ("failed", "127.0.0.1 answered 400")
    made.run(12)
    assert len(receiver.requests) == 1


def test_signatures_can_be_checked(world: Make, receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret")
    made = world(hook(receiver, secret=f', secret_file: "{tmp_path / "secret"}"'))
    made.put()
    made.run(1)
    ((_, headers, body),) = receiver.requests
    stamp = headers["X-Tracecore-Timestamp"]
    assert body["schema"] == "tracecore/notification/v1"
    signed = f"{stamp}.".encode() + json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    assert headers["X-Tracecore-Signature"] == "sha256=" + hmac.new(b"s3cret", signed, hashlib.sha256).hexdigest()


def test_a_crash_after_the_delivery_repeats_nothing_in_slack(slack: World, receiver: Receiver) -> None:
    slack.put()
    slack.run()
    slack.clock.forward(11)
    real = type(slack.config.receivers["oncall"].ways[0]).send

    class Crash(BaseException):
        pass

    def crash(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        raise Crash

    way = type(slack.config.receivers["oncall"].ways[0])
    way.send = crash  # type: ignore[assignment,method-assign]
    try:
        slack.notifier.step()
        slack.notifier._pool.shutdown()
    finally:
        way.send = real  # type: ignore[method-assign]
    assert len(receiver.bodies("chat.postMessage")) == 1
    slack.restart()
    slack.run(30)
    assert len(receiver.bodies("chat.postMessage")) == 1, "it was found in the channel"
    slack.put(revision=2, headline="better")
    slack.run(5)
    assert receiver.bodies("chat.update")[-1]["ts"] == "1.0"


def test_a_storm_leaves_as_one_message(world: Make, receiver: Receiver) -> None:
    made = world(hook(receiver).replace("group_by: [job]", "group_by: [namespace]").replace("wait: 0s", "wait: 5s"))
    for number in range(150):
        made.put(str(number), job=f"vision/job-{number}")
    made.run(6)
    (storm,) = receiver.bodies()
    assert (storm["firing"], len(storm["incidents"]), storm["more"]) == (150, 150, 0), "a program gets all of them"
    assert storm["title"].startswith("150 incidents: ")
    assert storm["text"].endswith("and 130 more"), "a person gets some of them"


def silence(made: World, matcher: Matcher, seconds: int) -> None:
    now = made.clock.now
    made.store.silences.create([matcher], who="ada", now=now, ends_at=now + seconds * SECOND)


def test_silences_hold_back_and_let_go(world: Make, receiver: Receiver) -> None:
    made = world(hook(receiver))
    now = made.clock.now
    made.store.silences.create(
        [Matcher(name="node", op="=", value="node-17")], who="ada", now=now, ends_at=now + 100 * SECOND
    )
    made.put()
    made.run(90)
    assert receiver.requests == []
    made.run(60)
    assert [body["reason"] for body in receiver.bodies()] == ["opened"]


def test_a_resolved_incident_that_was_silenced_is_never_told(world: Make, receiver: Receiver) -> None:
    made = world(hook(receiver))
    now = made.clock.now
    made.store.silences.create(
        [Matcher(name="job", op="=~", value="vision/.*")], who="ada", now=now, ends_at=now + 50 * SECOND
    )
    made.put()
    made.run(10)
    made.put(revision=2, state="resolved")
    made.run(100)
    assert receiver.requests == []


def test_a_cause_inhibits_what_it_brings_about(world: Make, receiver: Receiver) -> None:
    made = world(
        hook(
            receiver,
            """
inhibit_rules:
  - source_matchers: ['pattern="gpu_fault"']
    target_matchers: ['pattern="straggler"']
    equal: [node]
""",
        ).replace("group_by: [job]", "group_by: ['...']")
    )
    made.put("cause", root_cause={"pattern": "gpu_fault"}, job="a")
    made.put("effect", root_cause={"pattern": "straggler"}, job="b")
    made.put("elsewhere", root_cause={"pattern": "straggler"}, job="c", suspects={"nodes": ["node-3"]})
    made.run(30)
    assert sorted(body["key"] for body in receiver.bodies()) == ["incident-cause", "incident-elsewhere"]
    made.put("cause", root_cause={"pattern": "gpu_fault"}, job="a", revision=2, state="resolved")
    made.run(60)
    assert "incident-effect" in {body["key"] for body in receiver.bodies()}


def test_nothing_is_sent_in_a_maintenance_window(world: Make, receiver: Receiver) -> None:
    made = world(
        hook(
            receiver,
            """
time_intervals:
  - name: maintenance
    time_intervals: [{starts_at: "2026-11-14T00:00:00Z", ends_at: "2026-11-14T23:47:40Z"}]
""",
        ).replace("group_wait: 0s", "group_wait: 0s, mute_time_intervals: [maintenance]")
    )
    made.put()
    made.run(50)
    assert receiver.requests == []
    made.run(60)
    assert len(receiver.requests) == 1


def test_old_incidents_are_not_told_by_a_cold_start(world: Make, receiver: Receiver) -> None:
    made = world(hook(receiver))
    made.put("old", last_seen="2026-11-10T00:00:00Z", first_seen="2026-11-10T00:00:00Z")
    made.put("new")
    made.run(5)
    assert [body["key"] for body in receiver.bodies()] == ["incident-new"]


def test_pagerduty_gets_one_page_by_its_key(world: Make, receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("R0UT1NG")
    made = world(f"""
receivers:
  - name: pager
    pagerduty_configs: [{{routing_key_file: "{tmp_path / "key"}", url: "{receiver.url}/v2/enqueue"}}]
route: {{receiver: pager, group_wait: 0s}}
""")
    made.put()
    made.run(1)
    made.put(revision=2, headline="GPU 3 fell off the bus")
    made.run(5)
    made.store.people.act("incident-1", "acknowledge", "ada", made.clock.now)
    made.run(5)
    made.put(revision=3, headline="GPU 3 fell off the bus (Xid 79)")
    made.run(5)
    made.put(revision=4, state="resolved")
    made.run(5)
    events = receiver.bodies()
    assert [event["event_action"] for event in events] == [
        "trigger", "trigger", "acknowledge", "trigger", "acknowledge", "resolve",
    ]  # fmt: skip
    assert {event["dedup_key"] for event in events} == {"incident-1"}
    assert events[1]["payload"]["severity"] == "critical"
    assert "Xid 79" in events[3]["payload"]["summary"], "who acknowledged it gets a better diagnosis too"


@pytest.mark.parametrize("page", [b"<html>sign in</html>", b"[]", b""])
def test_a_proxy_s_page_is_no_answer_of_pagerduty(world: Make, receiver: Receiver, tmp_path: Path, page: bytes) -> None:
    (tmp_path / "key").write_text("R0UT1NG")
    made = world(f"""
receivers:
  - name: pager
    pagerduty_configs: [{{routing_key_file: "{tmp_path / "key"}", url: "{receiver.url}/v2/enqueue"}}]
route: {{receiver: pager, group_wait: 0s}}
""")
    receiver.faults = [page]
    made.put()
    made.run(5)
    assert made.notifier.counts == {"retried": 1, "sent": 1}
    assert len(receiver.requests) == 1, "the second one reached PagerDuty"


def test_alertmanager_s_labels_stay_the_same(world: Make, receiver: Receiver) -> None:
    made = world(f"""
receivers: [{{name: am, alertmanager_configs: [{{url: "{receiver.url}"}}]}}]
route: {{receiver: am, group_wait: 0s}}
""")
    made.put()
    made.run(1)
    made.put(revision=2, root_cause={"pattern": "gpu_fault"}, headline="better")
    made.run(100)
    made.put(revision=3, state="resolved")
    made.run(5)
    alerts = [alert for body in receiver.bodies("/api/v2/alerts") for alert in body]
    assert len({json.dumps(alert["labels"], sort_keys=True) for alert in alerts}) == 1
    assert len(alerts) >= 4, "a firing alert is said again before Alertmanager forgets it"
    assert alerts[-1]["annotations"]["summary"] == "better" or "Rank 2" in alerts[-1]["annotations"]["summary"]


def test_mail_is_sent_once_when_it_opens_and_once_when_it_is_over(world: Make, mailbox: Mailbox) -> None:
    made = world(f"""
receivers:
  - name: mail
    email_configs:
      - {{to: [oncall@example.com], from: tracecore@example.com, smarthost: "{mailbox.place}", require_tls: false}}
route: {{receiver: mail, group_wait: 0s, group_interval: 10s}}
""")
    mailbox.faults = ["451 try later"]
    made.put()
    made.run(5)
    made.put(revision=2, headline="GPU 3 fell off the bus")
    made.run(30)
    made.put(revision=3, state="resolved", headline="GPU 3 fell off the bus")
    made.run(30)
    opened, over = mailbox.mails
    assert "Subject: Rank 2 never entered all_reduce (1) (vision/train-1)" in opened
    assert "Subject: Resolved: GPU 3 fell off the bus" in over
    first = next(line for line in opened.splitlines() if line.startswith("Message-ID")).partition(": ")[2]
    assert f"In-Reply-To: {first}" in over


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_apprise_reaches_the_rest(world: Make, receiver: Receiver, tmp_path: Path) -> None:
    pytest.importorskip("apprise", reason="the extra `notify` is not installed")
    (tmp_path / "url").write_text(receiver.url.replace("http:", "json:") + "/service")
    made = world(f"""
receivers: [{{name: rest, apprise_configs: [{{url_file: "{tmp_path / "url"}"}}]}}]
route: {{receiver: rest, group_wait: 0s, group_interval: 10s}}
""")
    receiver.faults = [500]
    made.put()
    made.run(5)
    made.put(revision=2, state="resolved")
    made.run(30)
    opened, over = receiver.bodies("/service")
    assert (opened["type"], over["type"]) == ("failure", "success")
    assert over["title"].startswith("Resolved: Rank 2 never entered")


def test_metrics_say_what_was_sent_and_what_waits(slack: World, receiver: Receiver) -> None:
    from starlette.testclient import TestClient

    from tracecore.server.app import make_app

    app = make_app(slack.store, clock=slack.clock)
    app.state.notifier = slack.notifier
    slack.put()
    slack.run(12)
    receiver.faults = [500, 500]
    slack.put("2", job="other")
    slack.run(11)
    slack.clock.forward(90)
    text = TestClient(app, base_url="http://127.0.0.1").get("/metrics").text
    assert 'tracecore_server_notifications_total{outcome="sent"} 1.0' in text
    assert 'tracecore_server_notifications_total{outcome="retried"} 2.0' in text
    overdue = next(line for line in text.splitlines() if line.startswith("tracecore_server_notifications_overdue"))
    assert 80 < float(overdue.split()[1]) < 95


def test_a_receiver_that_fails_for_minutes_is_overdue_and_logged(
    slack: World, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.faults = [500] * 1000
    slack.put()
    slack.run(11)
    slack.run(240, step=4)
    assert len(receiver.faults) < 995
    assert 230 < slack.notifier.overdue_s() < 250
    assert [record.getMessage() for record in caplog.records] == [
        "the receiver oncall (slack/0) takes no notifications: 127.0.0.1 answered 500; "
        "tried again after 1, 2, 4 … 300 s"
    ]
    slack.run(3800, step=100)
    assert "for 60 min now" in caplog.records[1].getMessage()
    assert len(caplog.records) == 2
    receiver.faults = []
    slack.run(310, step=10)
    assert slack.notifier.overdue_s() == 0
    assert "takes notifications again, after" in caplog.records[2].getMessage()


def _why(made: World) -> list[str]:
    return unsent(made.store, made.config, "incident-1")


def test_an_incident_that_is_not_told_says_why(world: Make, receiver: Receiver) -> None:
    def hook(route: str = "receiver: a", more: str = "") -> World:
        receivers = f"receivers: [{{name: a, alertmanager_configs: [{{url: '{receiver.url}'}}]}}, {{name: nobody}}]"
        return world(f"{receivers}\nroute: {{group_wait: 5s, {route}}}\n{more}")

    made = hook(
        "receiver: a, routes: [{receiver: nobody, matchers: ['job=other']}]",
        """
inhibit_rules: [{source_matchers: ['pattern="gpu_fault"'], target_matchers: ['pattern="nccl_hang"'], equal: [node]}]
""",
    )
    made.put()
    made.run()
    assert _why(made) == ["it waits until 2026-11-14T23:46:45Z"]
    silence = made.store.silences.create(
        [Matcher(name="job", value="vision/train-1")], who="ada", now=made.clock.now,
        ends_at=made.clock.now + 3600 * SECOND,
    )  # fmt: skip
    made.run(1)
    assert _why(made) == ["silenced by ada until 2026-11-15T00:46:40Z"]
    made.store.silences.expire(silence.id, made.clock.now)
    made.put("2", root_cause={"pattern": "gpu_fault"})
    made.run(1)
    assert _why(made) == ["inhibited by incident-2"]
    made.put(revision=2, state="resolved")
    made.run(1)
    assert _why(made) == ["inhibited by incident-2"], "as it was while it lasted"
    made.put("3", last_seen="2026-11-14T14:26:40Z", first_seen="2026-11-14T14:26:40Z")
    made.put("4", job="other")
    made.run(1)
    assert unsent(made.store, made.config, "incident-3") == ["older than an hour when it arrived"]
    assert unsent(made.store, made.config, "incident-4") == ["the receiver 'nobody' of its route tells nobody"]
    assert unsent(made.store, None, "incident-4") == ["this server notifies nobody: it was started without --notify"]
    made.run(10)
    assert unsent(made.store, made.config, "incident-2") == [], "it was told"


def test_a_muted_incident_names_the_window(world: Make, receiver: Receiver) -> None:
    made = world(f"""
receivers: [{{name: a, alertmanager_configs: [{{url: '{receiver.url}'}}]}}]
route: {{receiver: a, routes: [{{mute_time_intervals: [maintenance]}}]}}
time_intervals: [{{name: maintenance, time_intervals: [{{times: [{{start_time: "23:00", end_time: "24:00"}}]}}, {{times: [{{start_time: "00:00", end_time: "02:30"}}]}}]}}]
""")  # noqa: E501
    made.put()
    made.run()
    assert _why(made) == ["muted by 'maintenance' until 2026-11-15T02:30:00Z"]
