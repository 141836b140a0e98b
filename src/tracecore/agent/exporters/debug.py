"""The `debug` exporter: what passes, on standard error."""

from __future__ import annotations

import sys
from typing import Any, ClassVar, Literal

import msgspec

from tracecore.agent.batch import Batch
from tracecore.agent.component import Exporter, Setting
from tracecore.agent.printing import visible, visible_json

#: Of a record's text so much is shown.
SHOWN = 512


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        verbosity: `basic` counts, `normal` shows a line for each record, `detailed` everything.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        "sampling_initial",
        "sampling_thereafter",
        "use_internal_logger",
        "output_paths",
        "sending_queue",
    )

    verbosity: Literal["basic", "normal", "detailed"] = "basic"


class Debug(Exporter):
    """Prints batches."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._setting = setting

    def export(self, batch: Batch) -> None:
        lines = [f"{self._setting.id}: {batch.count} of {batch.signal}"]
        if self._options.verbosity == "detailed":
            lines.append(visible_json(batch.json().decode()))
        elif self._options.verbosity == "normal" and batch.signal == "logs":
            lines += [_line(record) for record in _records(batch.view())]
        sys.stderr.write("\n".join(lines) + "\n")
        self._setting.meter.emit(batch.count)
        batch.done()


def _records(payload: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        record
        for entry in payload.get("resource_logs") or ()
        for scope in entry.get("scope_logs") or ()
        for record in scope.get("log_records") or ()
    ]


def _line(record: dict[str, Any]) -> str:
    body = record.get("body")
    text = body if isinstance(body, str) else repr(body)
    attributes = " ".join(f"{visible(name)}={value!r:.80}" for name, value in (record.get("attributes") or {}).items())
    return f"  {text[:SHOWN]!r} {attributes}".rstrip()
