"""Runs over many bundles: hand out tasks, divide large bundles, commit results in batches."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Final, TypeAlias

import msgspec

from tracecore.archive.bundles import fingerprint, named
from tracecore.archive.comparison import RunComparison
from tracecore.archive.dataset import Archive, Result, error_row
from tracecore.archive.tasks import (
    Diagnose,
    Failed,
    Join,
    Outcome,
    PartFacts,
    ReadPart,
    Rediagnose,
    Rediagnosed,
    Surveyed,
    Task,
    TaskLimits,
    joined,
    parts_of,
)
from tracecore.archive.workers import Workers
from tracecore.diagnose import facts as reading
from tracecore.diagnose.offline import join, judge, survey
from tracecore.facts.ordinals import Ordinals
from tracecore.facts.wording import counted
from tracecore.incidents.coverage import PART
from tracecore.incidents.diagnosis import Diagnosis

#: A batch is committed when it has so many bundles, or so many facts, or is so many seconds old.
BATCH: Final = 64
BATCH_FACTS: Final = 500_000
BATCH_S: Final = 10.0


class RunSummary(msgspec.Struct):
    """The findings of a run.

    Args:
        bundles: that the run was given.
        before: of these, done by an earlier run and unchanged.
        done: diagnosed now, errors included.
        incidents: of all these bundles.
        causes: incidents by the pattern that names their root.
        unexplained: incidents without a root.
        healthy: bundles without an incident.
        nothing_read: (bundle, reason), of those in which no file could be read.
        read_in_part: (bundle, reason), of those with a file or archive that could not be read to its end.
        errors: (bundle, reason), of those whose diagnosis failed.
    """

    bundles: int = 0
    before: int = 0
    done: int = 0
    incidents: int = 0
    causes: Counter[str] = msgspec.field(default_factory=Counter)
    unexplained: int = 0
    healthy: int = 0
    nothing_read: list[tuple[str, str]] = []
    read_in_part: list[tuple[str, str]] = []
    errors: list[tuple[str, str]] = []

    @property
    def undiagnosed(self) -> list[tuple[str, str]]:
        """The bundles without a diagnosis, each with the reason."""
        return sorted([*self.errors, *self.nothing_read])

    def add(self, result: Result) -> None:
        """Count a result of this run or of an earlier one."""
        if result.status == "error":
            self.errors.append((result.bundle, result.error))
        self.healthy += result.status == "no_incident"
        document = result.document or {}
        skipped = document.get("coverage", {}).get("skipped", [])
        if result.status == "nothing_read":
            self.nothing_read.append((result.bundle, _reason(result.bundle, skipped) or "it has no files"))
        elif cut := [one for one in skipped if one["reason"].startswith(PART)]:
            self.read_in_part.append((result.bundle, _reason(result.bundle, cut)))
        for incident in document.get("incidents", ()):
            self.incidents += 1
            root = incident["root_cause"]
            if root is None:
                self.unexplained += 1
            else:
                self.causes[root["pattern"]] += 1

    def document(self) -> dict[str, Any]:
        """As `-o json` prints it."""
        return msgspec.to_builtins(self) | {  # type: ignore[no-any-return]
            "causes": dict(sorted(self.causes.items(), key=lambda item: (-item[1], item[0]))),
            **{name: _listed(getattr(self, name)) for name in ("nothing_read", "read_in_part", "errors")},
        }


def _listed(pairs: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"bundle": bundle, "reason": reason} for bundle, reason in sorted(pairs)]


def _reason(bundle: str, skipped: Sequence[Mapping[str, str]]) -> str:
    """Why a bundle, or some of its files, could not be read: the reason of the whole, else of the first file."""
    if not skipped:
        return ""
    own = next((one for one in skipped if one["path"] == bundle), skipped[0])
    reason = own["reason"].removeprefix(PART)
    if own["path"] == bundle:
        return reason
    more = len(skipped) - 1
    inside = own["path"].removeprefix(bundle).lstrip("!/")
    return f"{inside}: {reason}" + (f", and {counted(more, 'file')} more" if more else "")


def diagnose_all(
    bundles: Sequence[str],
    archive: Archive,
    workers: Workers,
    *,
    again: bool = False,
    progress: Callable[[RunSummary], None] | None = None,
    sink: Callable[[dict[str, Any]], None] | None = None,
) -> RunSummary:
    """Diagnose bundles into an archive; those that it has and that have not changed are left out.

    Args:
        again: do all of them.
        progress: told after every bundle.
        sink: given each diagnosis before it is committed, so that it may be given one twice and never misses one.
    """
    summary = RunSummary(bundles=len(bundles))
    with archive.writing():
        known = archive.newest()
        unchanged: list[str] = []

        def missing() -> Iterator[Diagnose]:
            for bundle in bundles:
                own, before = fingerprint(bundle), known.get(named(bundle))
                same = before is not None and before.fingerprint == own and before.status != "error"
                if same and own and not again:
                    summary.before += 1
                    unchanged.append(named(bundle))
                    if progress is not None:
                        progress(summary)
                else:
                    yield Diagnose(bundle, own)

        batch = _Batch(archive, sink)
        try:
            for task, outcome in _run(missing(), workers):
                assert isinstance(task, Diagnose)
                result = outcome if isinstance(outcome, Result) else failed(task, outcome)
                summary.done += 1
                summary.add(result)
                batch.add(result)
                if progress is not None:
                    progress(summary)
        finally:
            # Also when the user stops it: what is finished is not done again.
            batch.commit()
        for result in archive.results(unchanged, contents=False):
            summary.add(result)
    return summary


def rediagnose_all(
    archive: Archive, workers: Workers, *, save: bool = False, progress: Callable[[int, int], None] | None = None
) -> RunComparison:
    """Diagnose every bundle of an archive again from its facts, and compare.

    Args:
        save: keep the new diagnoses.
        progress: told how many of how many bundles are done.
    """
    found = RunComparison()
    done = 0
    with archive.writing() if save else nullcontext():
        total = sum(known.status != "error" for known in archive.newest().values())
        batch = _Batch(archive, None)
        tasks = (Rediagnose(stored) for stored in archive.results() if stored.status != "error")
        for task, outcome in _run(tasks, workers):
            assert isinstance(task, Rediagnose)
            stored = task.stored
            if isinstance(outcome, Rediagnosed):
                found.add(stored.bundle, stored.document or {}, outcome.result.document or {})
                found.unknown_facts += outcome.unknown_facts
                if save:
                    batch.add(outcome.result)
            else:
                found.errors.append((stored.bundle, outcome.error if isinstance(outcome, Failed) else "no result"))
            done += 1
            if progress is not None:
                progress(done, total)
        if save:
            batch.commit()
    return found


def failed(task: Diagnose, outcome: Outcome) -> Result:
    """The row of a bundle that has no diagnosis."""
    error = outcome.error if isinstance(outcome, Failed) else "no result"
    return error_row(named(task.bundle), task.fingerprint, error)


class _Batch:
    """Results that are not committed yet. A timer commits them where the next result is long in coming."""

    def __init__(self, archive: Archive, sink: Callable[[dict[str, Any]], None] | None) -> None:
        self._archive = archive
        self._sink = sink
        self._results: list[Result] = []
        self._facts = 0
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None

    def add(self, result: Result) -> None:
        if self._sink is not None and (document := result.document) is not None:
            self._sink(document)
        with self._lock:
            self._results.append(result)
            self._facts += len(result.facts.get("number", ()))
            if len(self._results) >= BATCH or self._facts >= BATCH_FACTS:
                self.commit()
            elif self._timer is None:
                self._timer = threading.Timer(BATCH_S, self._due)
                self._timer.daemon = True
                self._timer.start()

    def _due(self) -> None:
        # What cannot be written stays, and the next commit says why.
        with suppress(Exception):
            self.commit()

    def commit(self) -> None:
        """Write what has come; a result that cannot be written becomes an error of its bundle."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            try:
                self._archive.append(self._results)
            except (ValueError, TypeError, OverflowError):
                checked = [(result, self._archive.unwritable(result)) for result in self._results]
                if not any(reason for _, reason in checked):
                    raise
                rows = [error_row(r.bundle, r.fingerprint, reason) if reason else r for r, reason in checked]
                self._archive.append(rows)
            self._results, self._facts = [], 0


class _Large:
    """A large bundle whose parts are being read."""

    def __init__(self, task: Diagnose, surveyed: Surveyed) -> None:
        self.task = task
        self.surveyed = surveyed
        self.parts: list[PartFacts | None] = [None] * len(surveyed.parts)
        self.error: Failed | None = None
        self.left = len(self.parts)

    def tasks(self) -> Iterator[ReadPart]:
        bundle = self.surveyed.survey.bundle
        all_lines = reading.is_small(bundle.streams)
        for streams in self.surveyed.parts:
            yield ReadPart(streams, bundle.clock, all_lines, bundle.redact)

    def take(self, number: int, outcome: Outcome) -> None:
        self.left -= 1
        if isinstance(outcome, PartFacts):
            self.parts[number] = outcome
        else:
            self.error = outcome if isinstance(outcome, Failed) else Failed("no result")

    def join(self) -> Join:
        parts = [part for part in self.parts if part is not None]
        return Join(self.task.bundle, self.task.fingerprint, self.surveyed.survey, parts, self.surveyed.seconds)


Whole: TypeAlias = Diagnose | Rediagnose


def _run(tasks: Iterable[Whole], workers: Workers) -> Iterator[tuple[Whole, Outcome]]:
    """Each bundle with its outcome, as they finish. Few tasks are under way at a time, so that results do not pile up.

    Parts of large bundles go before bundles that have not begun: a bundle that is read in part holds memory.
    """
    source = iter(tasks)
    urgent: list[tuple[Task, tuple[Whole | _Large, int]]] = []
    under_way: dict[int, tuple[Whole | _Large, int]] = {}
    number = 0

    def fill() -> None:
        nonlocal number
        while len(under_way) < workers.capacity:
            if urgent:
                task, whose = urgent.pop()
            else:
                found = next(source, None)
                if found is None:
                    return
                task, whose = found, (found, 0)
            number += 1
            under_way[number] = whose
            workers.submit(number, task)

    fill()
    while under_way:
        for key, outcome in workers.finished():
            whose, part = under_way.pop(key)
            if isinstance(whose, _Large):
                whose.take(part, outcome)
                if whose.left == 0 and whose.error is not None:
                    yield whose.task, whose.error
                elif whose.left == 0:
                    urgent.append((whose.join(), (whose.task, 0)))
            elif isinstance(outcome, Surveyed) and isinstance(whose, Diagnose):
                large = _Large(whose, outcome)
                urgent += [(task, (large, place)) for place, task in enumerate(large.tasks())]
            else:
                yield whose, outcome
            fill()


def diagnose_spread(
    paths: Sequence[str],
    workers: Workers,
    limits: TaskLimits,
    *,
    ordinals: Ordinals = "never",
    redact: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Diagnose one bundle here, its logs read by workers; the same as `diagnose.offline.diagnose` gives.

    Raises:
        FileNotFoundError: a given path does not exist.
        PartError: a part could not be read.
    """
    found = survey(paths, redact=redact)
    bundle = found.bundle
    total = sum(stream.size or 0 for stream in bundle.streams)
    divided = parts_of(bundle.streams, limits)
    all_lines = reading.is_small(bundle.streams)
    for number, streams in enumerate(divided):
        workers.submit(number, ReadPart(streams, bundle.clock, all_lines, bundle.redact))
    parts: dict[int, PartFacts] = {}
    done = 0
    for number, outcome in workers.finished():
        if not isinstance(outcome, PartFacts):
            raise PartError(outcome.error if isinstance(outcome, Failed) else "no result")
        parts[number] = outcome
        done += outcome.counters.bytes_read
        if progress is not None:
            progress(done, total)
    facts, counters = join(found, joined([parts[number] for number in sorted(parts)]), ordinals=ordinals)
    return judge(bundle, facts, counters)


class PartError(Exception):
    """A part of a bundle could not be read; the message says why."""
