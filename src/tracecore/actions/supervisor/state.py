"""State of a supervisor that survives a kill: one small file, written whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from tracecore.actions.exclusion import Exclusions
from tracecore.actions.ledger import FailureLedger
from tracecore.signals import private

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA: Final = "tracecore/supervise/v1"


class StateError(Exception):
    """The state cannot be used; the message says why and what to do."""


class State(msgspec.Struct, kw_only=True):
    """State of a supervised run.

    Args:
        run: names the run; every process of it carries it.
        command: what is run, without secrets.
        phase: an attempt runs, the next one waits for its time, or it is all over.
        attempt: its number, counted through all runs of the folder.
        since: when the attempt began, in nanoseconds since the epoch.
        resume_at: when the next attempt may begin.
        outcome: how it ended; after a stop the next start takes up where this one left.
        status: exit status of the last attempt, as a shell has it.
        step: the furthest step of the attempt.
        free: restarts in a row that cost nothing.
    """

    run: str
    command: list[str]
    phase: Literal["running", "waiting", "ended"] = "waiting"
    attempt: int = 0
    since: int = 0
    resume_at: int = 0
    outcome: Literal["", "completed", "failed", "stopped"] = ""
    status: int | None = None
    step: int | None = None
    ledger: FailureLedger = msgspec.field(default_factory=FailureLedger)
    excluded: Exclusions = Exclusions()
    schema: str = SCHEMA

    @property
    def unfinished(self) -> bool:
        """Return whether the next start goes on with this run: its supervisor died, or was told to stop."""
        return self.phase != "ended" or self.outcome == "stopped"


def load(path: Path) -> State | None:
    """The state in this file; None where there is none.

    Raises:
        StateError: the file is there and is no state of ours.
    """
    try:
        state = msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(f"{path}: {error}; move it away to begin anew") from error
    if state.schema != SCHEMA:
        raise StateError(f"{path}: of another version ({state.schema}); move it away to begin anew")
    return state


def save(path: Path, state: State) -> None:
    """Write it so that a crash leaves the old state or the new one."""
    private.write(path, msgspec.json.encode(state), durable=True)
