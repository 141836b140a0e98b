"""The `transform` processor: OTTL statements on logs, metrics and traces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import msgspec

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.document import ConfigReport, Node
from tracecore.agent.processors.statements import check_text
from tracecore.ottl.errors import OttlError
from tracecore.ottl.planner.plan import Plan, outline
from tracecore.ottl.processor import STATEMENT_KEYS, GroupSource, Processor

Mode = Literal["ignore", "silent", "propagate"]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Statements that share a context and conditions."""

    context: str | None = None
    conditions: list[str] = []
    statements: list[str]
    error_mode: Mode | None = None
    shared_cache: bool = False


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        error_mode: what a statement that fails on a record does: `propagate` drops the batch.
        log_statements: statements, or groups of them.
        metric_statements: the same for metrics.
        trace_statements: the same for spans.
    """

    IGNORED: ClassVar[tuple[str, ...]] = ("flatten_data",)

    error_mode: Mode = "propagate"
    log_statements: list[str | Group] = []
    metric_statements: list[str | Group] = []
    trace_statements: list[str | Group] = []


def check(options: Options, node: Node, report: ConfigReport) -> None:
    """Every statement and condition, compiled by itself, then each group as a whole."""
    for key, signal in STATEMENT_KEYS.items():
        listed = node.get(key)
        if listed is None or not listed.is_list:
            continue
        texts = [item for item in listed.value if not item.is_map]
        if texts and len(texts) != len(listed.value):
            report.error(listed, f"{key} must be a list of statements or a list of groups, not both")
        elif texts:
            _check_group(texts, [], signal, "", listed, report)
        else:
            for item in listed.value:
                context = item.get("context")
                statements, conditions = item.get("statements"), item.get("conditions")
                name = str(context.value or "") if context is not None else ""
                _check_group(
                    statements.value if statements is not None else [],
                    conditions.value or [] if conditions is not None else [],
                    signal,
                    name,
                    context or item,
                    report,
                )


def _check_group(
    statements: list[Node], conditions: list[Node], signal: str, context: str, where: Node, report: ConfigReport
) -> None:
    before = len(report.problems)
    if context:
        for node in statements:
            check_text(node, report, lambda text: GroupSource(signal, (text,), context).compile())
        for node in conditions:
            check_text(node, report, lambda text: GroupSource(signal, (), context, (text,)).compile())
    else:
        # Without a context it follows from all paths together: a statement alone may not tell.
        for node in statements:
            check_text(node, report, _parse)
    if len(report.problems) == before:
        try:
            texts = tuple(node.value for node in statements), tuple(node.value for node in conditions)
            GroupSource(signal, texts[0], context, texts[1]).compile()
        except (OttlError, ValueError) as error:
            report.error(where, f"OTTL: {error}")


def _parse(text: str) -> Any:
    from tracecore.ottl.parser import parse

    return parse(text)


class Transform:
    """Runs statements. Where they change only their own log record, one scan says which can do something."""

    def __init__(self, options: Options, setting: Setting) -> None:
        config: dict[str, Any] = msgspec.to_builtins(options)
        self._meter = setting.meter
        self._processor = Processor(config)
        self._plan: Plan | None = None
        planned = outline([config])
        if planned.local and planned.groups and all(group.context == "log" for group in planned.groups):
            self._plan = Plan(planned)
        self._failures = 0

    def process(self, batch: Batch) -> Iterable[Batch]:
        payload = batch.payload
        if batch.signal == "logs":
            if self._plan is not None and not any(
                "schema_url" in entry for entry in payload.get("resource_logs") or ()
            ):
                _run_plan(self._plan, payload)
            else:
                self._processor.process_logs(payload)
        elif batch.signal == "metrics":
            self._processor.process_metrics(payload)
            batch.recount()
        else:
            self._processor.process_traces(payload)
        failures = self._processor.failures + (self._plan.failures if self._plan is not None else 0)
        self._meter.failures += failures - self._failures
        self._failures = failures
        return (batch,)


def _run_plan(plan: Plan, payload: dict[str, Any]) -> None:
    for entry in payload.get("resource_logs") or ():
        resource = entry.setdefault("resource", {})
        for held in entry.get("scope_logs") or ():
            scope = held.setdefault("scope", {})
            for record in held.get("log_records") or ():
                plan.run({"resource": resource, "scope": scope, "log": record})
