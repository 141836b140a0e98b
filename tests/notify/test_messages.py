# ruff: noqa: E501  rows of a table stay on one line
"""The whole text of each message that the default templates make."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tracecore.notify.http import post
from tracecore.notify.incidents import _telling
from tracecore.notify.kinds import TryAgain
from tracecore.notify.message import NotificationMessage, ShownIncident
from tracecore.notify.rendering import example, render
from tracecore.notify.trial import trial

from .conftest import Mailbox, Receiver
from .test_notifier import Make

URL = "https://t.example.com"


def told(id: str = "incident-1", **more: Any) -> ShownIncident:
    own = {
        "id": id, "headline": f"Rank 2 never entered all_reduce ({id})", "job": "llm/byhand", "where": "node n1",
        "action": "Look at rank 2.", "decision": "retry 1 of 3 at once", "evidence": ["one", "two"],
        "url": f"{URL}/incidents/{id}",
    }  # fmt: skip
    return msgspec.convert(example() | own | more, ShownIncident)


def message(*incidents: ShownIncident, more: int = 0) -> NotificationMessage:
    firing = sum(one.status == "firing" for one in incidents)
    made = NotificationMessage(
        key="k", delivery="d", reason="opened", status="firing" if firing else "resolved", receiver="oncall", group={},
        incidents=[*incidents], new=[], more=more, firing=firing, resolved=len(incidents) - firing,
    )  # fmt: skip
    render(made, {})
    return made


OPENED = """\
Where: node n1, job llm/byhand
Do: Look at rank 2.
Retry: retry 1 of 3 at once
> one
> two
https://t.example.com/incidents/incident-1"""

RESOLVED = """\
Where: node n1, job llm/byhand
Do: Look at rank 2.
Retry: retry 1 of 3 at once
> one
> two
Acknowledged by ada.
Resolved at 2026-11-16T10:00:00Z.
https://t.example.com/incidents/incident-1"""

GROUP = """\
Rank 2 never entered all_reduce (incident-1)
Where: node n1, job llm/byhand
Do: Look at rank 2.
Retry: retry 1 of 3 at once
> one
> two
https://t.example.com/incidents/incident-1

Resolved: Rank 2 never entered all_reduce (incident-2)
Job: llm/byhand
Do: Look at rank 2.
https://t.example.com/incidents/incident-2

and 3 more"""


@pytest.mark.parametrize(
    ("made", "title", "text"),
    [
        (message(told()), "Rank 2 never entered all_reduce (incident-1) (llm/byhand)", OPENED),
        (message(told(where="", job="", decision="", action="", url="")), "Rank 2 never entered all_reduce (incident-1)", "> one\n> two"),
        (message(told(status="resolved", ended="2026-11-16T10:00:00Z", acknowledged_by="ada")), "Resolved: Rank 2 never entered all_reduce (incident-1) (llm/byhand)", RESOLVED),
        (message(told(), told("incident-2", status="resolved", where="", decision=""), more=3), "Rank 2 never entered all_reduce (incident-1) (llm/byhand)", GROUP),
        (message(told(), told("incident-2")), "2 incidents: Rank 2 never entered all_reduce (incident-1)", None),
    ],
    ids=["opened", "bare", "resolved", "group", "two"],
)  # fmt: skip
def test_default_text(made: NotificationMessage, title: str, text: str | None) -> None:
    assert made.title == title
    assert text is None or made.text == text


TRACEBACK = [
    "[rank2]: Traceback (most recent call last):",
    '[rank2]:   File "/opt/train/run.py", line 3, in <module>',
    "[rank2]:     main()",
    '[rank2]:   File "/opt/train/run.py", line 9, in main',
    "[rank2]:     x[7]",
    "[rank2]:     ~^^^",
    "[rank2]: IndexError: list index out of range",
    "[rank2]: a second line of its text",
]


def test_of_a_traceback_the_error_and_its_frame_are_quoted() -> None:
    assert _telling(TRACEBACK) == [TRACEBACK[3], TRACEBACK[6]]
    chained = [*TRACEBACK[:2], "[rank2]: KeyError: 1", "[rank2]: During handling of the above exception", *TRACEBACK]
    assert _telling(chained) == [TRACEBACK[3], TRACEBACK[6]]
    assert _telling(["a", "b", "c"]) == ["a", "b", "c"]
    assert _telling(TRACEBACK[:1]) == TRACEBACK[:1]


def test_a_mail_names_its_address_once(world: Make, mailbox: Mailbox) -> None:
    made = world(f"""
external_url: {URL}
receivers: [{{name: a, email_configs: [{{to: [a@b.c], from: t@b.c, smarthost: "{mailbox.place}", require_tls: false}}]}}]
route: {{receiver: a, group_wait: 0s}}
""")
    made.put()
    made.run(2)
    (mail,) = mailbox.mails
    assert mail.count(URL) == 1


def test_a_receiver_that_does_not_answer_is_said_to(receiver: Receiver) -> None:
    receiver.faults = ["hang"]
    with pytest.raises(TryAgain, match=r"^127\.0\.0\.1 did not answer within 0\.1 s$"):
        post(receiver.url, b"{}", timeout=0.1)
    with pytest.raises(TryAgain, match=r"^127\.0\.0\.1 cannot be reached$"):
        post("http://127.0.0.1:9", b"{}")


def test_a_test_message_carries_the_present_time(world: Make, receiver: Receiver) -> None:
    text = "receivers: [{name: a, alertmanager_configs: [{url: URL}]}]\nroute: {receiver: a}\n"
    config = world(text.replace("URL", receiver.url)).config
    before = datetime.now(UTC).replace(microsecond=0)
    assert trial(config, config.receivers["a"], config.receivers["a"].ways[0]) == ""
    opened, over = receiver.bodies("/alerts")
    assert before <= datetime.fromisoformat(opened[0]["startsAt"]) <= datetime.now(UTC)
    assert before <= datetime.fromisoformat(over[0]["endsAt"]) <= datetime.now(UTC)
