"""Silences and mute times over incidents that were told already: nothing is lost, and nobody is told a falsehood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tracecore.notify import notifier
from tracecore.store.records import Matcher

from .conftest import SECOND, Mailbox, Receiver, World
from .test_notifier import hook

Make = Callable[[str], World]


def silence(made: World, seconds: int, value: str = "incident-1", tenant: str = "") -> None:
    now = made.clock.now
    matchers = [Matcher(name="incident", op="=", value=value)]
    made.store.silences.create(matchers, who="ada", now=now, ends_at=now + seconds * SECOND, tenant=tenant)


def to_alertmanager(receiver: Receiver, group_by: str = "job") -> str:
    return f"""
receivers: [{{name: am, alertmanager_configs: [{{url: "{receiver.url}"}}]}}]
route: {{receiver: am, group_by: [{group_by}], group_wait: 0s}}
"""


def test_a_silence_of_one_tenant_does_not_concern_another(world: Make, receiver: Receiver) -> None:
    made = world(hook(receiver))
    silence(made, 1000, tenant="somebody-else")
    made.put()
    made.run(5)
    assert [body["reason"] for body in receiver.bodies()] == ["opened"]


def test_a_silenced_alert_does_not_look_resolved_in_alertmanager(world: Make, receiver: Receiver) -> None:
    made = world(to_alertmanager(receiver))
    made.put("1")
    made.run(5)
    silence(made, 1000)
    made.run(400, step=5)
    assert len(receiver.bodies()) >= 6, "said again before Alertmanager forgets it"
    assert all([alert["labels"]["incident_id"] for alert in body] == ["incident-1"] for body in receiver.bodies())
    made.put("2", job="other")
    made.run(5)
    assert receiver.bodies()[-1][0]["labels"]["incident_id"] == "incident-2", "others are told as ever"


def test_every_incident_of_a_storm_is_an_alert(world: Make, receiver: Receiver) -> None:
    made = world(to_alertmanager(receiver, "namespace"))
    for number in range(150):
        made.put(str(number), job=f"vision/job-{number}")
    made.run(5)
    (alerts,) = receiver.bodies()
    assert len({alert["labels"]["incident_id"] for alert in alerts}) == 150


def test_what_lasts_after_a_silence_is_told_again_where_the_page_was_resolved(world: Make, receiver: Receiver) -> None:
    made = world(hook(receiver))
    made.put("1")
    made.put("2")
    made.run(5)
    silence(made, 100)
    made.run(5)
    made.put("2", revision=2, state="resolved")
    made.run(20)
    assert receiver.bodies()[-1]["status"] == "resolved"
    made.run(150)
    last = receiver.bodies()[-1]
    assert (last["status"], last["new"]) == ("firing", ["incident-1"])


def test_after_a_silence_the_message_mentions_its_incident_again_and_wakes_nobody(
    world: Make, receiver: Receiver
) -> None:
    made = world(hook(receiver))
    made.put("1")
    made.put("2")
    made.run(5)
    silence(made, 100)
    made.put("2", revision=2, headline="GPU 3 fell off the bus")
    made.run(20)
    assert [one["id"] for one in receiver.bodies()[-1]["incidents"]] == ["incident-2"]
    made.run(150)
    last = receiver.bodies()[-1]
    assert last["reason"] == "updated"
    assert {one["id"] for one in last["incidents"]} == {"incident-1", "incident-2"}


def test_the_end_of_an_incident_waits_for_the_end_of_a_silence_where_it_would_be_a_new_message(
    world: Make, mailbox: Mailbox
) -> None:
    made = world(f"""
receivers:
  - name: mail
    email_configs:
      - {{to: [oncall@example.com], from: tracecore@example.com, smarthost: "{mailbox.place}", require_tls: false}}
route: {{receiver: mail, group_wait: 0s, group_interval: 10s}}
""")
    made.put()
    made.run(5)
    silence(made, 200)
    made.put(revision=2, state="resolved")
    made.run(150, step=5)
    assert len(mailbox.mails) == 1
    made.run(100, step=5)
    assert "Subject: Resolved: " in mailbox.mails[1]


def test_an_incident_that_comes_back_after_its_thread_was_closed_is_told_in_it(world: Make, receiver: Receiver) -> None:
    made = world(hook(receiver))
    made.put()
    made.run(5)
    made.put(revision=2, state="resolved")
    made.run(20)
    made.run(7 * 3600, step=600)
    made.put(revision=3)
    made.run(5)
    assert [body["reason"] for body in receiver.bodies()] == ["opened", "resolved", "joined"]
    assert {body["key"] for body in receiver.bodies()} == {"incident-1"}


def test_a_group_that_never_ends_forgets_what_was_over_long_ago(world: Make, receiver: Receiver) -> None:
    made = world(hook(receiver).replace("group_by: [job]", "group_by: [cluster]"))
    made.put("lasts")
    made.put("short")
    made.run(5)
    made.put("short", revision=2, state="resolved")
    made.run(5)
    assert {one["id"] for one in receiver.bodies()[-1]["incidents"]} == {"incident-lasts", "incident-short"}
    made.run(7 * 3600, step=600)
    made.put("new")
    made.run(700, step=10)
    assert {one["id"] for one in receiver.bodies()[-1]["incidents"]} == {"incident-lasts", "incident-new"}
    made.put("short", revision=3)
    made.run(60, step=5)
    assert "incident-short" in receiver.bodies()[-1]["new"], "it is told where it comes back"


def test_a_message_that_cannot_be_made_does_not_hold_up_the_others(
    world: Make, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = world(hook(receiver))
    real = notifier.render

    def render(message: Any, templates: Any) -> None:
        if message.key == "incident-1":
            raise KeyError("broken")
        real(message, templates)

    monkeypatch.setattr(notifier, "render", render)
    made.put("1")
    made.run(1)
    made.put("2", job="other")
    made.run(1)
    assert [body["key"] for body in receiver.bodies()] == ["incident-2"]
    assert "could not be made" in caplog.text
    monkeypatch.setattr(notifier, "render", real)
    made.run(60, step=5)
    assert [body["key"] for body in receiver.bodies()] == ["incident-2", "incident-1"], "and it is not lost"
