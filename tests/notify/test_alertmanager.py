"""Beside a real Alertmanager (`apt-get install prometheus-alertmanager`): the same routes, and incidents told alike.

For the second each side tells a webhook. Compared is what people would notice: which incidents were told together,
which were never told, which were told as over, and how often. When exactly within an interval is each program's affair.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tracecore.notify.config import read
from tracecore.notify.matchers import Labels
from tracecore.notify.routes import matching
from tracecore.store.records import Matcher
from tracecore.store.store import Store

from .conftest import SECOND, Clock, Receiver, World

pytestmark = pytest.mark.interop
SEED = int(os.environ.get("ALERTMANAGER_SEED", "1"))
TREES, QUESTIONS = 40, 5
VALUES = {
    "job": ["vision/a", "vision/b", "nlp-7", "x.y", "", 'say "hi"', "été"],
    "class": ["infrastructure", "code", "resource", ""],
    "pattern": ["nccl_hang", "gpu_fault", "host_oom", ""],
    "team": ["a", "b", ""],
}
EXPRESSIONS = ["vision.*", "a|b", ".+", "", ".*", "[a-n].*", "nccl_hang|gpu_fault", "(?i)VISION/A", "a"]


def _matcher(chance: random.Random) -> str:
    name = chance.choice([*VALUES])
    op = chance.choice(["=", "!=", "=~", "!~"])
    value = chance.choice(EXPRESSIONS if op[-1] == "~" else VALUES[name])
    quoted = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{name}{op}{quoted if chance.random() < 0.8 or not value.isalnum() else value}"


def _route(chance: random.Random, numbers: Any, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"matchers": [_matcher(chance) for _ in range(chance.choice([0, 1, 1, 2]))]}
    if chance.random() < 0.8:
        made["receiver"] = f"r{next(numbers)}"
    if chance.random() < 0.4:
        made["continue"] = True
    if depth and chance.random() < 0.6:
        made["routes"] = [_route(chance, numbers, depth - 1) for _ in range(chance.randint(1, 3))]
    return made


@pytest.mark.parametrize("tree", range(TREES))
def test_same_receivers(tree: int, tmp_path: Path) -> None:
    amtool = program("amtool")
    chance = random.Random(f"{SEED}-{tree}")
    numbers = iter(range(1, 1000))
    route = {"receiver": "r0", "routes": [_route(chance, numbers, 3) for _ in range(chance.randint(1, 4))]}
    text = yaml.safe_dump({"route": route, "receivers": [{"name": f"r{n}"} for n in range(next(numbers))]})
    path = tmp_path / "config.yaml"
    path.write_text(text)
    config = read(path)
    for _ in range(QUESTIONS):
        labels: Labels = {name: [chance.choice(values)] for name, values in VALUES.items()}
        labels = {name: values for name, values in labels.items() if values[0] and chance.random() < 0.8}
        given = [f"{name}={values[0]}" for name, values in labels.items()]
        given = [one.replace('"', '\\"').replace("=", '="', 1) + '"' for one in given]
        told = subprocess.run(
            [amtool, "config", "routes", "test", f"--config.file={path}", *given],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert told.returncode == 0, told.stderr
        ours = ",".join(route.receiver for route in matching(config.route, labels))
        assert ours == told.stdout.strip(), (labels, text)


def program(*names: str) -> str:
    """The path of the first of these programs that is installed; skips where none is."""
    for name in names:
        if found := shutil.which(name):
            return found
    pytest.skip(f"NO ALERTMANAGER: {names[0]} is not installed (Debian: apt-get install prometheus-alertmanager)")


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[Callable[[str], httpx.Client]]:
    """Start Alertmanager with a configuration; gives a client for it."""
    processes: list[subprocess.Popen[bytes]] = []
    clients: list[httpx.Client] = []

    def start(config: str) -> httpx.Client:
        path = tmp_path / "alertmanager.yml"
        path.write_text(config)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        command = [program("prometheus-alertmanager", "alertmanager"), f"--config.file={path}"]
        command += [f"--storage.path={tmp_path / 'data'}", f"--web.listen-address={address}"]
        with (tmp_path / "alertmanager.log").open("wb") as log:
            processes.append(subprocess.Popen([*command, "--cluster.listen-address="], stdout=log, stderr=log))
        clients.append(httpx.Client(base_url=f"http://{address}", timeout=20))
        for _ in range(200):
            try:
                if clients[-1].get("/-/ready").status_code == 200:
                    return clients[-1]
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError((tmp_path / "alertmanager.log").read_text()[-2000:])

    yield start
    for client in clients:
        client.close()
    for process in processes:
        process.terminate()
        process.wait(20)


ROUTE = """
route:
  receiver: hook
  group_by: [job]
  group_wait: 1s
  group_interval: 2s
  repeat_interval: 1h
  routes:
    - {receiver: hook, matchers: ['job="each"'], group_by: [node]}
    - {receiver: hook, matchers: ['job="again"'], repeat_interval: 4s}
    - {receiver: quiet, matchers: ['job="nobody"']}
inhibit_rules:
  - {source_matchers: ['pattern="gpu_fault"'], target_matchers: ['pattern="nccl_hang"'], equal: [job]}
"""
#: What happens: second, name, job, node, pattern, whether it is active then.
STORY = [
    (0.0, "a1", "together", "n1", "nccl_hang", True),
    (0.3, "a2", "together", "n2", "nccl_hang", True),
    (0.0, "b1", "each", "n1", "host_oom", True),
    (0.0, "b2", "each", "n2", "host_oom", True),
    (0.0, "c1", "inhibited", "n3", "gpu_fault", True),
    (0.1, "c2", "inhibited", "n4", "nccl_hang", True),
    (0.0, "d1", "silenced", "n5", "host_oom", True),
    (0.0, "e1", "nobody", "n6", "host_oom", True),
    (0.0, "f1", "later", "n7", "host_oom", True),
    (4.0, "f2", "later", "n8", "host_oom", True),
    (0.0, "g1", "ends", "n9", "host_oom", True),
    (4.0, "g1", "ends", "n9", "host_oom", False),
    (0.0, "h1", "again", "n1", "host_oom", True),
    (0.0, "i1", "short", "n1", "host_oom", True),
    (0.5, "i1", "short", "n1", "host_oom", False),
]
LASTS = 9.0


def test_told_alike(
    alertmanager: Callable[[str], httpx.Client], receiver: Receiver, store: Store, clock: Clock, tmp_path: Path
) -> None:
    theirs = _theirs(alertmanager, receiver)
    receiver.requests.clear()
    ours = _ours(receiver, store, clock, tmp_path)
    assert ours == theirs
    assert theirs["together"] == [("firing", ("a1", "a2"))], "the comparison compares nothing"


def _theirs(alertmanager: Callable[[str], httpx.Client], receiver: Receiver) -> dict[str, Any]:
    receivers = f"receivers: [{{name: hook, webhook_configs: [{{url: '{receiver.url}/am'}}]}}, {{name: quiet}}]\n"
    client = alertmanager(receivers + ROUTE)
    silence = {
        "matchers": [{"name": "job", "value": "silenced", "isRegex": False, "isEqual": True}],
        "startsAt": _time(time.time()), "endsAt": _time(time.time() + 3600), "createdBy": "test", "comment": "test",
    }  # fmt: skip
    assert client.post("/api/v2/silences", json=silence).status_code == 200
    begun = time.time()
    for at, name, job, node, pattern, active in sorted(STORY, key=lambda one: one[0]):
        time.sleep(max(begun + at - time.time(), 0))
        labels = {"alertname": name, "job": job, "node": node, "pattern": pattern}
        said = {
            "labels": labels,
            "startsAt": _time(begun),
            "endsAt": _time(time.time() if not active else begun + 3600),
        }
        assert client.post("/api/v2/alerts", json=[said]).status_code == 200
    time.sleep(max(begun + LASTS - time.time(), 0))
    return _noticed(
        [
            [(alert["labels"]["job"], alert["labels"]["alertname"], alert["status"]) for alert in body["alerts"]]
            for body in receiver.bodies("/am")
        ]
    )


def _ours(receiver: Receiver, store: Store, clock: Clock, tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "notify.yaml"
    (tmp_path / "url").write_text(f"{receiver.url}/ours")
    receivers = f"receivers: [{{name: hook, webhook_configs: [{{url_file: {tmp_path}/url}}]}}, {{name: quiet}}]\n"
    path.write_text(receivers + ROUTE)
    world = World(store, clock, read(path))
    store.silences.create(
        [Matcher(name="job", op="=", value="silenced")], who="ada", now=clock.now, ends_at=clock.now + 3600 * SECOND
    )
    passed, revisions = 0.0, dict.fromkeys((one[1] for one in STORY), 0)
    for at, name, job, node, pattern, active in sorted(STORY, key=lambda one: one[0]):
        world.run(at - passed, step=0.1)
        passed = at
        revisions[name] += 1
        world.put(
            name, job=job, revision=revisions[name], root_cause={"pattern": pattern, "verdict": "v"},
            suspects={"ranks": [], "nodes": [node], "gpus": [], "pods": []},
            state="diagnosed" if active else "resolved",
        )  # fmt: skip
    world.run(LASTS - passed, step=0.1)
    return _noticed(
        [
            [(one["labels"]["job"][0], one["id"].removeprefix("incident-"), one["status"]) for one in body["incidents"]]
            for body in receiver.bodies("/ours")
        ]
    )


def _noticed(messages: list[list[tuple[str, str, str]]]) -> dict[str, Any]:
    """Tell for each job, in order, the state of each message and the incidents that are new in it."""
    found: dict[str, Any] = {}
    told: dict[tuple[str, str], int] = {}
    for message in messages:
        job = message[0][0]
        news = tuple(sorted(name for _, name, status in message if not told.get((name, status))))
        for _, name, status in message:
            told[name, status] = told.get((name, status), 0) + 1
        state = "firing" if any(status == "firing" for _, _, status in message) else "resolved"
        if news or job == "again":
            found.setdefault(job, []).append((state, news))
    if "each" in found:
        found["each"].sort()
    return found


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"
