"""A crash at any instant neither loses nor repeats a page."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tracecore.notify.config import NotificationConfig, NotificationReceiver
from tracecore.notify.kinds import Kind, TryAgain
from tracecore.notify.message import NotificationMessage
from tracecore.notify.routes import SECOND, Route
from tracecore.store.records import Matcher
from tracecore.store.store import Store

from .conftest import Clock, Receiver, World, incident

#: Processes that are killed.
ROUNDS = 4


class Crash(BaseException):
    """The process is gone."""


class Desk(Kind, kw_only=True):
    """A receiver that knows each delivery by its key, as PagerDuty, Slack's metadata and our webhook do."""

    EDITS: ClassVar = True
    taken: ClassVar[dict[str, NotificationMessage]] = {}
    plan: ClassVar[list[str]] = []

    def send(self, message: NotificationMessage, before: Mapping[str, Any], uncertain: bool) -> dict[str, Any]:
        fate = Desk.plan.pop(0) if Desk.plan else "take"
        if fate == "lose":
            raise Crash
        if fate == "away":
            raise TryAgain("away")
        known = message.delivery in Desk.taken
        assert uncertain or not known, "a delivery that is known was begun anew"
        Desk.taken.setdefault(message.delivery, msgspec.structs.replace(message))
        if fate == "crash":
            raise Crash
        return {"first": before.get("first", message.delivery)}


class ForgetfulDesk(Desk, kw_only=True):
    """One that takes what it does not hear of again for over, as Alertmanager does."""

    REFRESH_S: ClassVar = 30.0


class Letters(Desk, kw_only=True):
    """One whose messages cannot be changed, as e-mail's; its server drops a letter it knows by its `Message-ID`."""

    EDITS: ClassVar = False


EVENTS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 3)),
    st.tuples(st.just("better"), st.integers(0, 3)),
    st.tuples(st.just("resolve"), st.integers(0, 3)),
    st.tuples(st.just("again"), st.integers(0, 3)),
    st.tuples(st.just("silence"), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.integers(1, 40)),
    st.tuples(st.just("restart"), st.just(0)),
)


@settings(max_examples=15, deadline=None)
@given(
    events=st.lists(EVENTS, min_size=3, max_size=25),
    fates=st.lists(st.sampled_from(["take", "take", "away", "lose", "crash"]), max_size=12),
    kind=st.sampled_from([Desk, ForgetfulDesk, Letters]),
)
def test_one_incident_one_page(events: list[tuple[str, int]], fates: list[str], kind: type[Desk]) -> None:
    Desk.taken, Desk.plan = {}, list(fates)
    route = Route(
        path="0", receiver="desk", group_by=["pattern"], group_wait=5 * SECOND, group_interval=10 * SECOND,
        repeat_interval=10**6 * SECOND,
    )  # fmt: skip
    config = NotificationConfig(
        receivers={"desk": NotificationReceiver(name="desk", ways=[kind(name="desk/0")])}, route=route
    )
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(f"{folder}/store.db", durable=False)
        world = World(store, Clock(), config)
        try:
            state = _play(world, events)
            Desk.plan = []
            world.restart()
            world.run(700, step=20)
        finally:
            world.notifier._pool.shutdown()
            store.close()
    woken: Counter[str] = Counter()
    last: dict[str, str] = {}
    for message in Desk.taken.values():
        if message.reason in ("opened", "joined"):
            woken.update(message.new)
        last |= {one.id: one.status for one in message.incidents}
    for name, open_ in state.items():
        if open_:
            assert woken[name] >= 1, f"nobody was told of {name}"
            assert last[name] == "firing"
        elif name in last:
            assert last[name] == "resolved"
    # Who was told that all is over is told again where an incident lasts after its silence.
    reopened = {f"incident-{which}" for what, which in events if what in ("again", "silence")}
    assert all(count == 1 for name, count in woken.items() if name not in reopened), woken


def _play(world: World, events: list[tuple[str, int]]) -> dict[str, bool]:
    """Let things happen; which incidents are open in the end."""
    revisions: Counter[int] = Counter()
    state: dict[str, bool] = {}
    for what, which in events:
        name = f"incident-{which}"
        if what == "wait":
            world.run(which, step=4)
        elif what == "restart":
            world.restart()
        elif what == "silence":
            now = world.clock.now
            world.store.silences.create(
                [Matcher(name="incident", value=name)], who="ada", now=now, ends_at=now + 60 * SECOND
            )
        elif what == "put" and not revisions[which]:
            revisions[which] += 1
            world.put(str(which), revision=1)
            state[name] = True
        elif revisions[which] and (what == "again" or (what != "put" and state[name])):
            revisions[which] += 1
            state[name] = what != "resolve"
            patterns = ("gpu_fault", "nccl_hang", "straggler")
            world.put(
                str(which), revision=revisions[which], state="resolved" if what == "resolve" else "diagnosed",
                root_cause={"pattern": patterns[revisions[which] % 3]}, headline=f"Revision {revisions[which]}",
            )  # fmt: skip
        world.run()
    return state


def test_kill_9_at_any_instant(receiver: Receiver, tmp_path: Path) -> None:
    """Incidents told by processes that are killed again and again are one message each in Slack."""
    seed = int(os.environ.get("KILL_SEED", "7"))
    dice = random.Random(seed)
    (tmp_path / "token").write_text("xoxb")
    (tmp_path / "notify.yaml").write_text(f"""
receivers:
  - name: oncall
    slack_configs: [{{channel: c, bot_token_file: "{tmp_path / "token"}", api_url: "{receiver.url}"}}]
route: {{receiver: oncall, group_by: [job], group_wait: 0s}}
""")
    place = str(tmp_path / "store.db")
    store = Store.open(place)
    source = (
        "import time\nfrom pathlib import Path\n"
        "import tracecore.notify.notifier as n\nfrom tracecore.notify.config import read\n"
        "from tracecore.store.store import Store\n"
        "n.LEASE = 300_000_000\n"
        f"n.Notifier(Store.open({place!r}), read(Path({str(tmp_path / 'notify.yaml')!r})), time.time_ns).start()\n"
        "time.sleep(60)\n"
    )
    try:
        for number in range(ROUNDS):
            now = time.time_ns()
            told = {"id": f"incident-{number}", "job": f"job-{number}", "first_seen": None, "last_seen": None}
            store.put_incident(incident(str(number), **told), now)
            process = subprocess.Popen([sys.executable, "-c", source])
            begun = len(receiver.requests)
            until = time.monotonic() + 20
            while len(receiver.requests) == begun and time.monotonic() < until:
                time.sleep(0.005)
            time.sleep(dice.random() * 0.02)
            process.send_signal(signal.SIGKILL)
            process.wait()
        process = subprocess.Popen([sys.executable, "-c", source])
        until = time.monotonic() + 30
        jobs: Counter[str] = Counter()
        while time.monotonic() < until and len(jobs) < ROUNDS:
            time.sleep(0.1)
            jobs = Counter(_job(body) for body in receiver.bodies("chat.postMessage"))
        time.sleep(1.5)
        process.kill()
        process.wait()
    finally:
        store.close()
    jobs = Counter(_job(body) for body in receiver.bodies("chat.postMessage"))
    assert jobs == {f"job-{number}": 1 for number in range(ROUNDS)}


def _job(body: dict[str, Any]) -> str:
    return str(body["text"]).rpartition("(")[2].rstrip(")")
