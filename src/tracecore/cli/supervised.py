"""`tracecore supervise status`: where a supervised run stands."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click

from tracecore.cli.output import print_json, shown_path


def show_status(folder: Path, as_json: bool) -> int:
    """Print the state of a run and of its attempts; nothing is changed or made."""
    from tracecore.actions.supervisor import process
    from tracecore.actions.supervisor import state as states
    from tracecore.actions.supervisor.state import StateError

    try:
        known = states.load(folder / "state.json")
    except StateError as error:
        raise click.ClickException(str(error)) from error
    if known is None:
        raise click.ClickException(f"there is no supervised run in {shown_path(folder)}; --state-dir says where it is")
    place = folder / "attempts" / f"{known.attempt:04d}"
    running = process.find(place) if known.phase == "running" else None
    document = _document(folder, known, running)
    if running is not None:
        running.close()
    if as_json:
        print_json(document)
        return 0
    from tracecore.incidents.excerpt import harmless

    click.echo(harmless("\n".join(_lines(document))))
    return 0


def _document(folder: Path, known: Any, running: Any) -> dict[str, Any]:
    from tracecore.patterns.contract import rfc3339
    from tracecore.signals.redaction import redacted_command

    phase = known.phase
    if phase == "running" and running is None:
        phase = "lost"
    return {
        "state_dir": os.path.abspath(folder),
        "command": redacted_command(known.command),
        "phase": phase,
        "outcome": known.outcome or None,
        "exit_status": known.status,
        "attempt": known.attempt,
        "retries": known.ledger.retries,
        "step": known.step,
        "pid": running.pid if running is not None else None,
        "since": rfc3339(known.since) if known.since else None,
        "next_attempt_at": rfc3339(known.resume_at) if phase == "waiting" and known.resume_at else None,
        "attempts": [_attempt(path) for path in _attempts(folder)],
    }


def _attempts(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in (folder / "attempts").iterdir() if path.name.isdigit())[-20:]
    except OSError:
        return []


def _attempt(path: Path) -> dict[str, Any]:
    import msgspec

    def read(name: str) -> dict[str, Any]:
        try:
            found = msgspec.json.decode((path / name).read_bytes())
        except (OSError, msgspec.DecodeError):
            return {}
        return found if isinstance(found, dict) else {}

    record, failure, diagnosis = read("attempt.json"), read("failure.json"), read("diagnosis.json")
    incidents = diagnosis.get("incidents")
    first = incidents[0] if isinstance(incidents, list) and incidents else {}
    found = {
        "attempt": int(path.name),
        "outcome": record.get("outcome"),
        "exit_code": record.get("exit_code"),
        "signal": record.get("signal") or None,
        "class": failure.get("class"),
        "headline": first.get("headline") if isinstance(first, dict) else None,
        "report": str(path / "report.html") if (path / "report.html").exists() else None,
        "evidence": str(path / "evidence") if (path / "evidence").exists() else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _lines(document: dict[str, Any]) -> list[str]:
    import shlex

    words = {
        "running": f"running as process {document['pid']}",
        "waiting": "waits for its next attempt",
        "lost": "its supervisor and its command are gone; start it again to go on",
        "ended": f"ended: {document['outcome']} (exit status {document['exit_status']})",
    }
    step = f", step {document['step']}" if document["step"] is not None else ""
    lines = [
        f"{shlex.join(document['command'])}",
        f"  attempt {document['attempt']}: {words.get(document['phase'], document['phase'])}{step}",
    ]
    if document["next_attempt_at"]:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        lines.append(f"  next attempt at {document['next_attempt_at']} (now {now})")
    for attempt in document["attempts"]:
        how = attempt.get("signal") or (f"exit status {attempt['exit_code']}" if "exit_code" in attempt else "")
        lines.append(f"  {attempt['attempt']:>4}  {attempt.get('outcome', 'running'):<10} {how}".rstrip())
        lines += [f"        {attempt[name]}" for name in ("headline",) if name in attempt]
        lines += [f"        {name}: {shown_path(attempt[name])}" for name in ("report", "evidence") if name in attempt]
    return lines
