"""Records of attempts: the files about each one, and the sentences that tell an operator how it went."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from tracecore.actions.supervisor import process
from tracecore.actions.supervisor.judgement import Judgement
from tracecore.actions.supervisor.process import Exit
from tracecore.actions.supervisor.state import State
from tracecore.facts.wording import counted
from tracecore.patterns.contract import rfc3339
from tracecore.signals import private
from tracecore.signals.redaction import redacted

#: At most so many processes that had to be killed are named.
NAMED: Final = 8


def attempt_folder(folder: Path, attempt: int) -> Path:
    """Return the folder of an attempt within the supervisor's."""
    return folder / "attempts" / f"{attempt:04d}"


def new_logs(place: Path, targets: tuple[int, int]) -> tuple[Path, ...]:
    """Return the files to write: one where both of our outputs are one, so that their order stays."""
    if os.path.sameopenfile(*targets):
        return (place / "output.log",)
    return place / "stdout.log", place / "stderr.log"


def logs_of(attempt: Path) -> tuple[Path, ...]:
    """Return the files that the output of an attempt was written to."""
    place = attempt / "evidence"
    both = place / "output.log"
    return (both,) if both.exists() else (place / "stdout.log", place / "stderr.log")


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document as indented JSON that only its owner can read."""
    private.write(path, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def write_attempt(attempt: Path, known: State, outcome: str, ended: Exit) -> None:
    """Write `attempt.json`: how an attempt went and ended."""
    killed = process.killed(attempt)
    write_document(
        attempt / "attempt.json",
        {
            "run": known.run,
            "attempt": known.attempt,
            "outcome": outcome,
            "command": known.command,
            "started_at": rfc3339(known.since),
            "ended_at": rfc3339(ended.at or time.time_ns()),
            "step": known.step,
            **{name: value for name, value in msgspec.to_builtins(ended).items() if name != "at"},
            "signal": ended.signal,
            **({"killed": {str(pid): redacted(name) for pid, name in killed.items()}} if killed else {}),
        },
    )


def write_failure(attempt: Path, judgement: Judgement) -> None:
    """Write `failure.json` and `diagnosis.json`."""
    document = judgement.failure.document()
    if judgement.diagnosis is not None:
        write_document(attempt / "diagnosis.json", judgement.diagnosis)
    if excluded := judgement.excluded.document():
        document["exclude"] = excluded
    write_document(attempt / "failure.json", document)


def failure_sentences(attempt: Path, judgement: Judgement, ended: Exit) -> Iterator[str]:
    """Yield what an operator is told about a failed attempt."""
    yield f"attempt {int(attempt.name)} failed ({how_ended(ended)}): {judgement.headline}"
    yield f"{judgement.failure.failure_class}: {judgement.failure.suggestion}"
    for note in judgement.notes:
        yield f"not looked at: {note}"
    yield from _killed_sentence(attempt)
    page = attempt / "report.html"
    if judgement.diagnosis is not None:
        yield f"diagnosis: {_relative(page if page.exists() else attempt / 'diagnosis.json')}"
    yield f"evidence: {_relative(attempt / 'evidence')}"
    if judgement.excluded:
        named = (*judgement.excluded.nodes, *judgement.excluded.gpus)
        yield f"excluded from the next attempt: {', '.join(named)} {judgement.excluded.slurm()}".rstrip()
    yield ("trying again: " if judgement.decision.retry else "not trying again: ") + judgement.decision.reason


def _killed_sentence(attempt: Path) -> Iterator[str]:
    """Name the processes that did not end with the command."""
    if killed := process.killed(attempt):
        some = list(killed.items())[:NAMED]
        named = ", ".join(f"{pid} ({redacted(name)[:60]})" if name else str(pid) for pid, name in some)
        more = f" and {len(killed) - NAMED} more" if len(killed) > NAMED else ""
        yield f"{counted(len(killed), 'process', 'processes')} had to be killed: {named}{more}"


def how_ended(ended: Exit) -> str:
    """Say how a command ended."""
    if ended.exit_code is None:
        return "unknown exit"
    return ended.signal or f"exit status {ended.exit_code}"


def delete_old_evidence(folder: Path, last: int) -> None:
    """Delete the files of the attempts up to this one, and keep their records."""
    for path in (folder / "attempts").iterdir():
        if path.name.isdigit() and int(path.name) <= last:
            for name in ("evidence", "stacks"):
                shutil.rmtree(path / name, ignore_errors=True)


def _relative(path: Path) -> str:
    """Return a path as one would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
