"""Base of operators: a condition, a way to deal with failures, and somewhere to write."""

from __future__ import annotations

from typing import Final, Protocol

from tracecore.signals.logs.operators.entry import Entry, OperatorError
from tracecore.signals.logs.operators.expression import Expression, ExpressionError
from tracecore.signals.logs.operators.options import Options

ON_ERROR: Final = ("send", "send_quiet", "drop", "drop_quiet")


#: What may go wrong with an entry: also numbers, times and nesting that nobody expected. It concerns that entry only.
FAILURES: Final = (OperatorError, ExpressionError, ArithmeticError, ValueError, RecursionError)
#: Reasons that are told apart; an operator's messages may quote what it was given.
MOST_REASONS: Final = 32
OTHER: Final = "for other reasons"


class Failures(Protocol):
    """Counts entries that an operator could not treat.

    `reasons` has those that are to be logged, by operator and reason.
    """

    entries_failed: int
    entries_dropped: int
    reasons: dict[tuple[str, str], int]


class Operator:
    """One step.

    Args:
        options: its options.
        failures: counts what went wrong.
    """

    def __init__(self, options: Options, failures: Failures) -> None:
        self.type = options.text("type")
        self.id = options.text("id", self.type)
        self.failures = failures
        self.on_error = options.one_of("on_error", ON_ERROR, "send")
        self.condition: Expression | None = options.condition("if")
        output = options.raw("output")
        if isinstance(output, str):
            output = [output]
        if output is not None and not (isinstance(output, list) and all(isinstance(one, str) for one in output)):
            options.wrong("output", "expected the id of an operator, or a list of them")
            output = None
        #: Ids of operators that follow; None for the next in the list.
        self.output: list[str] | None = output
        self.following: list[Operator] = []

    def process(self, entries: list[Entry], now: int) -> None:
        """Treats entries and writes them on."""
        done: list[Entry] = []
        for entry in entries:
            try:
                if self.condition is None or self.condition(entry):
                    self.transform(entry, now)
            except FAILURES as error:
                self.failed(entry, done, error)
                continue
            done.append(entry)
        self.write(done, now)

    def transform(self, entry: Entry, now: int) -> None:
        """Changes one entry.

        Raises:
            OperatorError: it cannot be treated.
        """
        raise NotImplementedError

    def count_failure(self, reason: object, count: int = 1) -> None:
        """Count entries that could not be treated; with `_quiet` the reason is not logged."""
        self.failures.entries_failed += count
        if self.on_error.endswith("_quiet"):
            return
        reasons = self.failures.reasons
        key = (self.id, str(reason))
        if key not in reasons and len(reasons) >= MOST_REASONS:
            key = (self.id, OTHER)
        reasons[key] = reasons.get(key, 0) + count

    def failed(self, entry: Entry, done: list[Entry], error: Exception) -> None:
        """Count an entry that could not be treated, and hand it on where `on_error` says so."""
        self.count_failure(error)
        if self.on_error in ("send", "send_quiet"):
            done.append(entry)
        else:
            self.failures.entries_dropped += 1

    def write(self, entries: list[Entry], now: int) -> None:
        """Hands entries to those that follow."""
        if not entries:
            return
        for other in self.following[1:]:
            other.process([entry.copied() for entry in entries], now)
        self.following[0].process(entries, now)

    def outputs(self) -> list[str] | None:
        """Ids of all operators that may follow; None for the next in the list."""
        return self.output

    def connect(self, known: dict[str, Operator], following: Operator) -> list[str]:
        """Finds those that follow; gives the ids that nobody has."""
        if self.output is None:
            self.following = [following]
            return []
        self.following = [known[one] for one in self.output if one in known]
        return [one for one in self.output if one not in known]

    def due(self, now: int) -> None:
        """Writes what has been held back for long enough."""

    def drain(self, now: int) -> None:
        """Writes everything that is held back."""

    def held(self, source: object) -> int | None:
        """Return where the first entry of a file begins that is held back."""
        return None


class Sink(Operator):
    """The end of the operators."""

    def __init__(self) -> None:
        self.id = self.type = "sink"
        self.entries: list[Entry] = []

    def process(self, entries: list[Entry], now: int) -> None:
        self.entries += entries
