"""`tracecore classify`: exit status, signal and log tail to what failed, and whether to try again."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tracecore.cli.output import json_option, json_text

if TYPE_CHECKING:
    from tracecore.actions.exclusion import Exclusions
    from tracecore.actions.failure import FailureInfo, RetryDecision
    from tracecore.actions.ledger import FailureLedger
    from tracecore.actions.policy import Policy

_WIDTH: Final = 100


@click.command(
    "classify",
    help="""Say what failed (infrastructure, code, data, resource, unknown), which line says so, and whether to retry.

The log is the end of the worker's or the launcher's output; `-` reads standard input. A verdict of `tracecore
diagnose --format json` decides before the log does.

Example: tracecore classify --exit-code 1 --log rank3.log
""",
)
@click.option("--exit-code", type=int, help="As the shell (137) or Python (-9) gives it.")
@click.option("--signal", "signal", help="The signal that ended the process: SIGKILL, kill or 9.")
@click.option("--log", "log", metavar="FILE|-", help="The end of the log; of a large file the last 4 MiB are read.")
@click.option("--reason", help="What Kubernetes or Slurm calls it: OOMKilled, Evicted, TIMEOUT, NODE_FAIL and so on.")
@click.option("--verdict", metavar="NAME|FILE", help="A pattern's name, or the JSON of a verdict or a diagnosis.")
@click.option(
    "--policy", "policy_name", default="default", show_default=True, metavar="NAME|FILE", help="Retry policy."
)
@click.option("--ledger", "ledger_path", metavar="FILE", help="The job's attempts so far; this one is written to it.")
@click.option("--step", type=click.IntRange(0), help="How far the job got, where the log does not say.")
@click.option("--checkpoint", help="The last checkpoint, by step or name; a later one is progress.")
@click.option("--dry-run", is_flag=True, help="Leave the ledger as it is.")
@click.option("--redact/--no-redact", default=True, show_default=True, help="Take secrets out of what is cited.")
@json_option("The failure record on stdout.")
def command(
    exit_code: int | None,
    signal: str | None,
    log: str | None,
    reason: str | None,
    verdict: str | None,
    policy_name: str,
    ledger_path: str | None,
    step: int | None,
    checkpoint: str | None,
    dry_run: bool,
    redact: bool,
    as_json: bool,
) -> int:
    """Read, classify, decide, print."""
    from tracecore.actions.classify import classify
    from tracecore.actions.exclusion import Exclusions, exclusions
    from tracecore.actions.failure import signal_name
    from tracecore.positioned_yaml import FileError

    if exit_code is None and signal is None and log is None and reason is None and verdict is None:
        raise click.UsageError("say how it ended: --exit-code, --signal, --log, --reason or --verdict")
    if signal and signal_name(signal) is None:
        raise click.BadParameter(f"{signal!r} is no signal", param_hint="--signal")
    from tracecore.actions import policy as policies

    try:
        policy = policies.named(policy_name)
    except FileError as error:
        raise click.UsageError(str(error)) from None
    judged = _verdict(verdict) if verdict else None
    now = time.time_ns()
    info = classify(exit_code, signal, _tail(log), judged, reason=reason, now=now, policy=policy, redact=redact)
    if step is not None:
        info = _at(info, step)
    if ledger_path is not None and info.failed:
        info = _ledgered(info, policy, Path(ledger_path), checkpoint, now, dry_run=dry_run)
    excluded = exclusions(judged, policy) if isinstance(judged, dict) else Exclusions()
    if as_json:
        _print_json(info, excluded)
    else:
        from tracecore.incidents.excerpt import harmless

        click.echo(harmless("\n".join(_text(info, excluded, dry_run))))
    return 0


def _tail(log: str | None) -> bytes:
    from tracecore.actions.tail import MAX_BYTES

    if log is None:
        return b""
    if log == "-":
        # Only the end is kept, however much comes.
        data = b""
        while chunk := sys.stdin.buffer.read(MAX_BYTES):
            data = (data + chunk)[-MAX_BYTES:]
        return data
    try:
        with Path(log).open("rb") as file:
            if file.seekable():
                file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_BYTES))
            return file.read(MAX_BYTES)
    except OSError as error:
        raise click.BadParameter(f"{log}: {error.strerror}", param_hint="--log") from None


def _verdict(given: str) -> str | dict[str, Any]:
    """A pattern's name as it is; of a file the verdict, or the root's of a diagnosis."""
    import msgspec

    from tracecore.actions.rules import standard

    path = Path(given)
    if not path.is_file():
        if given not in standard().by_pattern:
            known = ", ".join(sorted(standard().by_pattern))
            raise click.BadParameter(f"{given!r} is no file and no pattern; patterns: {known}", param_hint="--verdict")
        return given
    try:
        document = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise click.BadParameter(f"{given}: {error}", param_hint="--verdict") from None
    found = _root(document) if isinstance(document, dict) else None
    if found is None:
        raise click.BadParameter(
            f"{given}: neither a verdict nor a diagnosis with a root cause", param_hint="--verdict"
        )
    return found


def _root(document: dict[str, Any]) -> dict[str, Any] | None:
    """The verdict that this document is, or the first root cause of a diagnosis; None where it is neither."""
    if "incidents" not in document:
        return document if isinstance(document.get("pattern.name") or document.get("pattern"), str) else None
    for incident in _objects(document["incidents"]):
        root = incident.get("root_cause")
        if isinstance(root, dict) and isinstance(root.get("pattern"), str):
            verdicts = (v for v in _objects(document.get("verdicts")) if v.get("verdict.id") == root.get("verdict"))
            return {"pattern.name": root["pattern"], **next(verdicts, {}), "suspects": incident.get("suspects")}
    return None


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _at(info: FailureInfo, step: int) -> FailureInfo:
    import msgspec

    return msgspec.structs.replace(info, context={**info.context, "step": str(step)})


def _ledgered(
    info: FailureInfo, policy: Policy, path: Path, checkpoint: str | None, now: int, *, dry_run: bool
) -> FailureInfo:
    from tracecore.actions import ledger as ledgers
    from tracecore.actions.policy import with_decision

    try:
        ledger: FailureLedger = ledgers.load(path)
    except (OSError, ValueError) as error:
        raise click.BadParameter(str(error), param_hint="--ledger") from None
    ledger.progress(step=info.step, checkpoint=checkpoint)
    decision = policy.decide(info, ledger, now)
    ledger.record(info, decision, now)
    if not dry_run:
        ledgers.save(path, ledger)
    return with_decision(info, decision)


def _print_json(info: FailureInfo, excluded: Exclusions) -> None:

    document = info.document()
    if excluded:
        document["exclude"] = excluded.document()
    click.echo(json_text(document))


def _decision(retry: RetryDecision, *, dry_run: bool) -> str:
    """The decision as a sentence: `Retry 1 of 3 at once.`, `Do not retry: the cause is in the code, …`."""
    if retry.reason.startswith("retry "):
        return f"Would be {retry.reason}." if dry_run else f"{retry.reason.capitalize()}."
    if retry.decision == "retry":
        return f"{'Would retry' if dry_run else 'Retry'}: {retry.reason}."
    return f"{'Would not' if dry_run else 'Do not'} retry: {retry.reason}."


def _text(info: FailureInfo, excluded: Exclusions, dry_run: bool) -> list[str]:
    evidence = info.evidence
    if not info.failed:
        return [f"no failure: {evidence.why}"]
    lines = [f"{info.failure_class}: {evidence.why} ({evidence.rule.replace('_', ' ')})"]
    if info.planned_stop:
        lines[0] = f"planned stop ({info.planned_stop.replace('_', ' ')}): {evidence.why}"
    if evidence.line:
        lines.append(f"  line {evidence.line_number}: {textwrap.shorten(evidence.line, _WIDTH)}")
    lines += textwrap.wrap(info.suggestion, _WIDTH)
    lines.append(_decision(info.retry, dry_run=dry_run))
    if excluded:
        lines.append(f"leave out: {', '.join((*excluded.nodes, *excluded.gpus))}")
        lines += [f"  {option}" for option in (excluded.slurm(),) if option]
    if evidence.considered:
        lines.append("also considered:")
        for other in evidence.considered:
            said = textwrap.shorten(other.line, 60, placeholder=" …") if other.line else ""
            lines.append(f"  {other.failure_class}, line {other.line_number}: {said} ({other.why})")
    return lines
