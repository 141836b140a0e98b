"""Slack: with a bot token one message for each group, changed in place, with a thread; or an incoming webhook."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final
from urllib.parse import urlencode

import msgspec

from tracecore.notify.http import parts, post, url_problem
from tracecore.notify.kinds.kind import Kind, MessageRefused, TryAgain
from tracecore.notify.message import NotificationMessage

#: Slack's own faults, which pass.
_PASSING: Final = (
    "ratelimited",
    "rate_limited",
    "internal_error",
    "fatal_error",
    "service_unavailable",
    "request_timeout",
)
#: The message was deleted, or is too old to be changed.
_GONE: Final = ("message_not_found", "cant_update_message", "edit_window_closed", "thread_not_found")
#: Characters that Slack takes in one block.
MAX_BLOCK: Final = 2_900
MAX_TITLE: Final = 900
#: Messages of a channel among which an earlier attempt is looked for.
HISTORY: Final = 200
#: Lists of a thousand channels in which a name is looked for.
MAX_PAGES: Final = 20
_CUT: Final = re.compile(r"&[a-z]{0,3}$")
_ID: Final = re.compile(r"[CGD][A-Z0-9]{7,}")
_EVENT: Final = "tracecore_delivery"


class Slack(Kind, kw_only=True):
    """
    Args:
        bot_token: of an app with `chat:write`; with `channels:history` a crash cannot repeat a message either, for a
            channel that is given by its name with `channels:read` as well.
        channel: for the bot: a name or an id.
        webhook_url: an incoming webhook instead of a bot; its messages cannot be changed later.
        api_url: of Slack's API.
    """

    bot_token: str = ""
    webhook_url: str = ""
    channel: str = ""
    api_url: str = "https://slack.com/api"

    SECRETS: ClassVar = ("bot_token", "webhook_url")

    @property
    def edits(self) -> bool:
        return bool(self.bot_token)

    def problem(self) -> str:
        if bool(self.bot_token) == bool(self.webhook_url):
            return "slack needs either bot_token_file or webhook_url_file"
        if self.bot_token and not self.channel:
            return "slack needs a channel beside bot_token_file"
        if not self.bot_token.isascii():
            return "slack's bot token has letters that no token has"
        problem = url_problem(self.webhook_url or self.api_url)
        return f"slack's address {problem}" if problem else ""

    def send(self, message: NotificationMessage, before: Mapping[str, Any], uncertain: bool) -> dict[str, Any]:
        if self.webhook_url:
            post(self.webhook_url, msgspec.json.encode(_body(message)))
            return {}
        thread = str(before.get("ts", ""))
        channel = str(before.get("channel", "")) or self.channel
        if thread:
            try:
                return self._go_on(message, channel, thread, uncertain)
            except _Gone:
                thread = ""
        found = self._find(channel, "", message.delivery) if uncertain else None
        answer = found or self._call("chat.postMessage", _marked(_body(message), message) | {"channel": channel})
        return {"ts": answer.get("ts", ""), "channel": answer.get("channel", "") or channel}

    def _go_on(self, message: NotificationMessage, channel: str, thread: str, uncertain: bool) -> dict[str, Any]:
        """Change the first message; what people should notice is a reply in its thread as well."""
        place = {"channel": channel, "thread_ts": thread}
        if message.reason != "updated" and not (uncertain and self._find(channel, thread, message.delivery)):
            wakes = message.reason in ("joined", "repeated")
            self._call("chat.postMessage", _marked(_reply(message), message) | place | {"reply_broadcast": wakes})
        self._call("chat.update", _body(message) | {"channel": channel, "ts": thread})
        return {"ts": thread, "channel": channel}

    def _find(self, channel: str, thread: str, delivery: str) -> dict[str, Any] | None:
        """Look for a message that an earlier attempt may have sent."""
        method = "conversations.replies" if thread else "conversations.history"
        try:
            channel = self._channel_id(channel)
            query = {"channel": channel, "limit": HISTORY, "include_all_metadata": "true"}
            answer = self._read(method, query | ({"ts": thread} if thread else {}))
        except (MessageRefused, _Gone):
            return None  # The token may not read the channel.
        for one in answer.get("messages") or ():
            payload = parts(parts(parts(one).get("metadata")).get("event_payload"))
            if payload.get("delivery") == delivery:
                return {"ts": str(one.get("ts", "")), "channel": channel}
        return None

    def _channel_id(self, channel: str) -> str:
        """The id of a channel; methods that read a channel do not take its name."""
        if _ID.fullmatch(channel):
            return channel
        cursor = ""
        for _ in range(MAX_PAGES):
            query = {"types": "public_channel,private_channel", "exclude_archived": "true", "limit": 1000}
            answer = self._read("conversations.list", query | ({"cursor": cursor} if cursor else {}))
            for one in answer.get("channels") or ():
                if parts(one).get("name") == channel.lstrip("#"):
                    return str(one.get("id", ""))
            cursor = str(parts(answer.get("response_metadata")).get("next_cursor") or "")
            if not cursor:
                break
        return channel

    def _call(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._answered(method, msgspec.json.encode(body), {})

    def _read(self, method: str, query: Mapping[str, Any]) -> dict[str, Any]:
        """Call a method that reads: those take forms, not JSON."""
        return self._answered(method, urlencode(query).encode(), {"Content-Type": "application/x-www-form-urlencoded"})

    def _answered(self, method: str, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
        headers |= {"Authorization": f"Bearer {self.bot_token}"}
        raw = post(f"{self.api_url.rstrip('/')}/{method}", body, headers)
        try:
            answer = parts(msgspec.json.decode(raw))
        except msgspec.DecodeError:
            raise TryAgain(f"slack: {method} answered something that is not JSON") from None
        if answer.get("ok") is True:
            return answer
        why = str(answer.get("error", "no reason"))[:100]
        if why in _PASSING:
            raise TryAgain(f"slack: {method}: {why}")
        if why in _GONE:
            raise _Gone(why)
        raise MessageRefused(f"slack: {method}: {why}")


class _Gone(Exception):
    pass


def _body(message: NotificationMessage) -> dict[str, Any]:
    """The message as one text and blocks; text of logs is data, never markup."""
    title = _escaped(message.title, MAX_TITLE) or "incident"
    urls = {one.url for one in message.incidents if one.url} | ({message.url} if message.url else set())
    return {
        "text": title,
        "blocks": [_section(f"*{title}*"), _section(_linked(message.text, urls))],
        "unfurl_links": False,
        "unfurl_media": False,
    }


def _section(text: str) -> dict[str, Any]:
    # `verbatim`: Slack makes no mention and no link of what only looks like one.
    return {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}


def _linked(text: str, urls: Collection[str]) -> str:
    """The text, in which the lines that are addresses of incidents are links."""
    lines: list[str] = []
    left = MAX_BLOCK
    for line in text.splitlines():
        shown = f"<{_escaped(line, MAX_BLOCK)}>" if line in urls else _escaped(line, MAX_BLOCK)
        if len(shown) > left:
            lines.append(_escaped(line, left) if left > 1 and line not in urls else "…")
            break
        lines.append(shown)
        left -= len(shown) + 1
    return "\n".join(lines) or " "


def _reply(message: NotificationMessage) -> dict[str, Any]:
    new = [one for one in message.incidents if one.id in message.new]
    if message.reason == "resolved" and not any(one.status == "firing" for one in message.incidents):
        text = "Resolved."
    elif message.reason == "resolved":
        text = "Resolved: " + "; ".join(one.headline for one in new)
    elif message.reason == "repeated":
        text = f"Still open: {message.title}"
    else:
        text = "\n".join(f"{one.headline} ({one.job})" if one.job else one.headline for one in new) or message.title
    return {"text": _escaped(text, MAX_BLOCK) or " ", "unfurl_links": False, "unfurl_media": False}


def _marked(body: dict[str, Any], message: NotificationMessage) -> dict[str, Any]:
    payload = {"delivery": message.delivery, "key": message.key}
    return body | {"metadata": {"event_type": _EVENT, "event_payload": payload}}


def _escaped(text: str, most: int) -> str:
    """Slack's three control characters as text, so that a log line cannot mention a channel or hide a link."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    if len(text) > most:
        # An escape that is cut in two would be shown as it is.
        text = _CUT.sub("", text[: most - 1]) + "…"
    return text
