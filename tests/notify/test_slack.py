"""Slack's own rules: lengths, escapes, mentions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Receiver, World
from .test_notifier import slack

Make = Callable[[str], World]
__all__ = ["slack"]


def test_text_full_of_markup_is_not_too_long_for_slack(slack: World, receiver: Receiver) -> None:
    slack.put(headline="<" * 500, remediation="&<>" * 1200)
    slack.run(12)
    for block in receiver.bodies("chat.postMessage")[0]["blocks"]:
        text = block["text"]["text"]
        assert len(text) <= 3000
        bare = text.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "")
        assert "&" not in bare, "no escape is cut in two"


def test_slack_makes_no_mention_and_no_link_of_log_text(slack: World, receiver: Receiver) -> None:
    slack.put(headline="@channel see http://evil.example #general", remediation="<!here>")
    slack.run(12)
    (posted,) = receiver.bodies("chat.postMessage")
    assert all(block["text"]["verbatim"] is True for block in posted["blocks"])
    text = posted["blocks"][1]["text"]["text"]
    assert text.count("<") == 1, "the incident's own page is the only link"
    assert "<https://tracecore.example.com/incidents/incident-1>" in text


@pytest.mark.parametrize("channel", ["#training", "training", "C0TRAIN1NG"])
def test_an_attempt_that_arrived_is_found_whatever_the_channel_is_called(
    world: Make, receiver: Receiver, tmp_path: Path, channel: str
) -> None:
    (tmp_path / "token").write_text("xoxb")
    made = world(f"""
receivers:
  - name: oncall
    slack_configs: [{{channel: "{channel}", bot_token_file: "{tmp_path / "token"}", api_url: "{receiver.url}"}}]
route: {{receiver: oncall, group_wait: 0s}}
""")
    receiver.faults = ["deaf"]
    made.put()
    made.run(30)
    assert len(receiver.bodies("chat.postMessage")) == 1
    made.put(revision=2, headline="better")
    made.run(5)
    assert receiver.bodies("chat.update")[-1]["ts"] == "1.0"
