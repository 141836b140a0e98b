"""Following a collection, whatever the server does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tracecore.signals.kubernetes import api
from tracecore.signals.kubernetes.watch import Collection, CollectionFollower, ObjectChange, discover, listing

Until = Callable[..., Any]
PODS = Collection("pods")


class Following:
    """A follower in a thread."""

    def __init__(self, version: str = "") -> None:
        self.stop = threading.Event()
        self.states: list[str] = []
        self.changes: list[ObjectChange] = []
        self.follower = CollectionFollower(
            lambda: api.connect("none"), PODS, stop=self.stop, state=self.states.append, version=version,
            back_off=(0.02, 0.1),
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for change in self.follower.changes():
            self.changes.append(change)

    def kinds(self) -> list[str]:
        return [change.kind for change in list(self.changes)]

    def versions(self, *kinds: str) -> list[str]:
        return [change.version for change in list(self.changes) if change.kind in kinds]

    def end(self) -> None:
        self.stop.set()
        self.follower.wake()
        self._thread.join(20)
        assert not self._thread.is_alive(), "a follower must end while it waits for the server"


@pytest.fixture
def follow() -> Iterator[Callable[..., Following]]:
    started: list[Following] = []

    def start(version: str = "") -> Following:
        started.append(Following(version))
        return started[-1]

    yield start
    for one in started:
        one.end()


def test_a_list_and_then_the_real_server_s_changes(replay: Any, follow: Any, lines: Any, until: Until) -> None:
    one = follow()
    until(lambda: "SYNCED" in one.kinds())
    assert one.kinds() == ["ITEM"] * 3 + ["SYNCED"]
    assert all(change.first and not change.repeat for change in one.changes[:3])
    assert b'"kind":"Pod"' in one.changes[0].object
    listed = one.versions("SYNCED")[0]
    replay.watches.put(lines("pods.watch.jsonl"))
    until(lambda: len(one.kinds()) >= 4 + 12)
    assert replay.versions() == [listed]
    assert one.states[-1] == ""
    # The recording is older than the list it follows here: a follower says so, and leaves the choice to others.
    assert all(change.repeat for change in one.changes[4:] if change.kind in ("ADDED", "MODIFIED"))


def test_a_broken_watch_goes_on_from_the_last_version(replay: Any, follow: Any, change: Any, until: Until) -> None:
    one = follow("100")
    replay.lists["/api/v1/pods"] = b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"105"}}'
    replay.watches.put([change("ADDED", "a", 101), change("ADDED", "b", 102)])
    until(lambda: len(one.changes) == 2)
    replay.die()
    until(lambda: one.states[-1] != "")
    assert "the API server" in one.states[-1]
    replay.rise()
    replay.watches.put([change("ADDED", "c", 103)])
    until(lambda: one.versions("ADDED")[-1] == "103")
    assert replay.versions()[-1] == "102"
    assert one.versions("ADDED") == ["101", "102", "103"]
    assert one.states[-1] == ""


def test_a_bookmark_moves_the_version_on(replay: Any, follow: Any, change: Any, until: Until) -> None:
    one = follow("100")
    replay.lists["/api/v1/pods"] = b'{"metadata":{"resourceVersion":"600"}}'
    replay.watches.put([change("BOOKMARK", "", 500)])
    until(lambda: one.kinds() == ["BOOKMARK"])
    replay.watches.put(None)
    until(lambda: len(replay.versions()) == 2)
    assert replay.versions()[-1] == "500"


def test_a_version_that_is_gone_is_listed_and_only_news_is_new(
    replay: Any, follow: Any, lines: Any, change: Any, until: Until
) -> None:
    replay.lists["/api/v1/pods"] = (
        b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"900"},"items":['
        b'{"metadata":{"name":"old","resourceVersion":"90"}},{"metadata":{"name":"new","resourceVersion":"110"}}]}'
    )
    one = follow("100")
    replay.watches.put(lines("expired.watch.jsonl"))
    until(lambda: "SYNCED" in one.kinds())
    until(lambda: replay.versions()[-1] == "900")
    items = [c for c in one.changes if c.kind == "ITEM"]
    assert [(c.version, c.repeat, c.first) for c in items] == [("90", True, False), ("110", False, False)]
    assert one.follower.expired == 1


def test_an_answer_of_410_is_the_same(replay: Any, follow: Any, until: Until) -> None:
    replay.next["watch"].append((410, b'{"kind":"Status","reason":"Expired","code":410}'))
    one = follow("100")
    replay.lists["/api/v1/pods"] = b'{"metadata":{"resourceVersion":"101"}}'
    until(lambda: replay.versions() == ["100", "101"])
    assert one.follower.expired == 1


def test_a_store_that_was_replaced_is_noticed_although_no_watch_says_so(
    replay: Any, follow: Any, change: Any, until: Until
) -> None:
    replay.lists["/api/v1/pods"] = (
        b'{"kind":"PodList","metadata":{"resourceVersion":"40"},"items":[{"metadata":{"resourceVersion":"30"}}]}'
    )
    one = follow("100")
    until(lambda: replay.versions() == ["40"])
    assert [(c.kind, c.repeat) for c in one.changes] == [("ITEM", False), ("SYNCED", False)]
    replay.watches.put([change("ADDED", "a", 41)])
    until(lambda: one.versions("ADDED") == ["41"])
    assert not one.changes[-1].repeat


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b'{"type":"ADDED"}\n',
        b'{"type":"ADDED","object":{"metadata":{}}}\n',
        b'{"type":"ADDED","object":{"metadata":{"resourceVersion":7}}}\n',
        b'{"type":"WHAT","object":{"metadata":{"resourceVersion":"7"}}}\n',
        b"[" * 100_000 + b"\n",
    ],
    ids=["text", "no object", "no version", "number", "kind", "deep"],
)
def test_what_is_no_change_is_counted_and_passed_over(
    replay: Any, follow: Any, change: Any, until: Until, line: bytes
) -> None:
    replay.lists["/api/v1/pods"] = b'{"metadata":{"resourceVersion":"101"}}'
    one = follow("100")
    replay.watches.put([line, change("ADDED", "a", 101)])
    until(lambda: one.versions("ADDED") == ["101"])
    assert one.follower.malformed == 1


def test_a_list_is_read_in_pages(replay: Any, recorded: Any) -> None:
    replay.next["list"] = [(200, recorded("pods.page.json"))]
    replay.lists["/api/v1/pods"] = b'{"kind":"PodList","metadata":{"resourceVersion":"9"},"items":[]}'
    changes = list(listing(api.connect("none"), PODS))
    assert [c.kind for c in changes] == ["ITEM", "ITEM", "SYNCED"]
    assert replay.asked[1][1]["continue"]


def test_pages_that_are_too_large_are_asked_for_in_smaller_ones(replay: Any, monkeypatch: Any, recorded: Any) -> None:
    monkeypatch.setattr("tracecore.signals.kubernetes.watch.MAX_PAGE", 1000)
    with pytest.raises(api.ApiError, match="larger than"):
        list(listing(api.connect("none"), PODS))
    assert [query["limit"] for _, query in replay.asked] == ["500", "62", "7", "1"]


def test_a_server_that_ends_each_watch_at_once_is_not_stormed(replay: Any, follow: Any, until: Until) -> None:
    replay.lists["/api/v1/pods"] = b'{"metadata":{"resourceVersion":"101"}}'
    for _ in range(200):
        replay.watches.put(None)
    follow("100")
    until(lambda: len(replay.versions()) >= 4)
    threading.Event().wait(0.5)
    assert len(replay.versions()) < 40


@pytest.mark.parametrize(
    ("forbidden", "state"),
    [
        ({"watch"}, "missing right: watch pods: pods are listed every 0 s instead"),
        ({"list"}, "missing right: list pods: pods are watched without a list"),
        ({"list", "watch"}, "missing right: list pods; missing right: watch pods"),
    ],
)
def test_a_missing_right_is_named(replay: Any, follow: Any, until: Until, forbidden: set[str], state: str) -> None:
    replay.forbidden = forbidden
    one = follow()
    until(lambda: state in one.states)
    if forbidden == {"list"}:
        assert replay.versions() == ["0"]
        return
    replay.forbidden = set()
    until(lambda: one.states[-1] == "" and replay.open)


def test_who_is_not_known_is_named(replay: Any, follow: Any, until: Until, recorded: Any) -> None:
    replay.next["list"] = [(401, recorded("unauthorized.json"))] * 2
    one = follow()
    until(lambda: any("does not know who asks (401 on list pods): Unauthorized" in state for state in one.states))
    until(lambda: one.states[-1] == "")


def test_a_server_that_is_busy_is_given_the_time_it_asks_for(replay: Any, follow: Any, until: Until) -> None:
    replay.next["list"] = [(429, b'{"message":"too many requests"}')]
    one = follow()
    until(lambda: "SYNCED" in one.kinds())
    assert one.states[0] == "the API server answers 429 to list pods: too many requests"


def test_groups_are_found_by_asking(replay: Any) -> None:
    way = api.connect("none")
    assert discover(way, "leases") == ("coordination.k8s.io", "v1")
    assert discover(way, "pods") == ("", "v1")
    assert discover(way, "podtemplates") == ("", "v1")
    assert discover(way, "events", "events.k8s.io") == ("events.k8s.io", "v1")
    with pytest.raises(api.ApiError, match='no resource "pytorchjobs"'):
        discover(way, "pytorchjobs", "kubeflow.org")
