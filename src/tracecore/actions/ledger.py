"""Ledger of a job's attempts: how often each root was retried, and how far the job got in between.

The count of a root starts again when the job has got further than where that root last struck: a later step or a
later checkpoint. A changed node name, rank or process id resets nothing: fingerprints do not have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.actions.failure import FailureClass
from tracecore.signals import private

if TYPE_CHECKING:
    from pathlib import Path

    from tracecore.actions.failure import FailureInfo
    from tracecore.actions.policy import Decision

#: Attempts and roots that are remembered; older ones are dropped, their counts stay in the totals.
MAX_ATTEMPTS: Final = 1000
MAX_ROOTS: Final = 1000


class Strike(msgspec.Struct, frozen=True):
    """One failed attempt."""

    time: int
    fingerprint: str
    failure_class: FailureClass = msgspec.field(name="class")
    step: int | None = None
    retried: bool = False
    planned: bool = False


class Root(msgspec.Struct):
    """State of one root.

    Args:
        retries: since the job last got further than where it struck.
        strikes: in all.
        mark: how far the job had got when it last struck.
        step: the step at which it last struck, where its log says.
        same_step: how often in a row it struck at that step.
    """

    retries: int = 0
    strikes: int = 0
    mark: int = 0
    step: int | None = None
    same_step: int = 0


class FailureLedger(msgspec.Struct):
    """The attempts of one job.

    Args:
        job: whose it is.
        mark: grows by one each time the job gets further.
        step: the furthest step seen.
        checkpoint: the last checkpoint, by step or name.
        retries: counted retries, in all.
        roots: by fingerprint.
        strikes: the last failed attempts.
    """

    job: str = ""
    mark: int = 0
    step: int | None = None
    checkpoint: str = ""
    retries: int = 0
    roots: dict[str, Root] = {}
    strikes: list[Strike] = []

    def progress(self, *, step: int | None = None, checkpoint: str | int | None = None) -> bool:
        """Say how far the job is; True where that is further than ever."""
        further = False
        if step is not None and (self.step is None or step > self.step):
            self.step = step
            further = True
        if checkpoint is not None and str(checkpoint) != self.checkpoint and self._later(str(checkpoint)):
            self.checkpoint = str(checkpoint)
            further = True
        self.mark += further
        return further

    def _later(self, checkpoint: str) -> bool:
        if checkpoint.isdigit() and self.checkpoint.isdigit():
            return int(checkpoint) > int(self.checkpoint)
        return True

    def retries_of(self, fingerprint: str) -> int:
        """Return how often this root was retried since the job last got further than where it struck."""
        root = self.roots.get(fingerprint)
        return 0 if root is None or self.mark > root.mark else root.retries

    def strikes_at(self, fingerprint: str, step: int | None) -> int:
        """Return how often in a row this root struck at this very step, not counting now."""
        root = self.roots.get(fingerprint)
        if root is None or self.mark > root.mark or root.step != step:
            return 0
        return root.same_step

    def record(self, failure: FailureInfo, decision: Decision, now: int) -> None:
        """Write down a failed attempt and what was decided about it."""
        retries = self.retries_of(failure.fingerprint)
        again = self.strikes_at(failure.fingerprint, failure.step)
        planned = failure.planned_stop is not None
        if not planned:
            root = self.roots.pop(failure.fingerprint, None) or Root()
            root.retries = retries + (decision.retry and decision.counted)
            root.strikes += 1
            root.same_step = again + 1
            root.step, root.mark = failure.step, self.mark
            self.roots[failure.fingerprint] = root
            while len(self.roots) > MAX_ROOTS:
                del self.roots[next(iter(self.roots))]
        self.retries += decision.retry and decision.counted
        self.strikes.append(
            Strike(now, failure.fingerprint, failure.failure_class, failure.step, decision.retry, planned)
        )
        del self.strikes[:-MAX_ATTEMPTS]


def load(path: Path, job: str = "") -> FailureLedger:
    """A ledger from its file; a new one where there is none.

    Raises:
        ValueError: the file is there and is no ledger.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return FailureLedger(job=job)
    try:
        return msgspec.json.decode(data, type=FailureLedger)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not a ledger: {error}") from None


def save(path: Path, ledger: FailureLedger) -> None:
    """Write a ledger so that a crash leaves the old one or the new one, never half of one."""
    private.make_folder(path.parent)
    private.write(path, msgspec.json.encode(ledger), durable=True)
