"""Tasks and attempts as JSON shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracecore.cli.queue.group import utc
from tracecore.signals.redaction import redacted_command

if TYPE_CHECKING:
    from tracecore.queue.task import Task, TaskAttempt


def without_secrets(env: dict[str, str]) -> dict[str, str]:
    """The environment as it may be shown."""
    from tracecore.queue.task import is_secret

    return {name: "***" if is_secret(name) else value for name, value in env.items()}


def document(task: Task) -> dict[str, Any]:
    """A task; absent rather than empty."""
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(task)
    spec = document.pop("spec")
    spec.setdefault("priority", 0)
    spec["command"] = redacted_command(spec["command"])
    if "env" in spec:
        spec["env"] = without_secrets(spec["env"])
    for name in ("submitted_at", "updated_at", "not_before", "lease_until"):
        document[name] = utc(document[name])
    return {"id": document.pop("id"), **spec, **{n: v for n, v in document.items() if v not in (None, "", {}, False)}}


def attempt_document(attempt: TaskAttempt) -> dict[str, Any]:
    """An attempt; absent rather than empty."""
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(attempt)
    for name in ("started_at", "ended_at"):
        document[name] = utc(document.get(name))
    return {name: value for name, value in document.items() if value is not None}
