"""The `transform` processor: groups of statements from a Collector's configuration, run over whole payloads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tracecore.ottl.compile import Program, compile_condition, compile_statement
from tracecore.ottl.context import Context
from tracecore.ottl.contexts import context_type
from tracecore.ottl.errors import OttlCompileError, OttlError, OttlRuntimeError, nearest
from tracecore.ottl.inference import SIGNALS, infer_context
from tracecore.ottl.otlpjson import LEVELS
from tracecore.ottl.parser import parse, parse_condition
from tracecore.ottl.runner import ErrorMode, check_error_mode, log, run_programs

#: The key of a configuration for each signal.
STATEMENT_KEYS: Final = {"log_statements": "logs", "metric_statements": "metrics", "trace_statements": "traces"}

#: How many metrics statements may add to one scope before it is taken for a loop without end.
MOST_ADDED: Final = 100_000

_GROUP_KEYS: Final = ("context", "conditions", "statements", "error_mode", "shared_cache")
_CONFIG_KEYS: Final = ("error_mode", *STATEMENT_KEYS)


@dataclass(frozen=True, slots=True)
class CompiledGroup:
    """Compiled statements of one context, with the conditions any of which lets them run.

    Args:
        context: `log`, `resource`, ...
        programs: in order.
        conditions: each with its text; empty means always.
        error_mode: what a failing statement or condition does.
        shared_cache: `cache` is one for all groups of this context that share it.
    """

    context: str
    programs: tuple[Program, ...]
    conditions: tuple[tuple[str, Callable[[Context], bool]], ...]
    error_mode: ErrorMode
    shared_cache: bool = False

    def run(self, ctx: Context) -> int:
        """Run on one record, and give how many statements and conditions failed."""
        failed = 0
        if self.conditions:
            matched, failed = self._matches(ctx)
            if not matched:
                return failed
        return failed + run_programs(self.programs, ctx, self.error_mode)

    def _matches(self, ctx: Context) -> tuple[bool, int]:
        failed = 0
        for text, condition in self.conditions:
            try:
                if condition(ctx):
                    return True, failed
            except OttlError as error:
                if self.error_mode == "propagate":
                    raise error.locate(text, 0)  # noqa: B904
                failed += 1
                if self.error_mode == "ignore":
                    log.warning("failed to eval condition: %s: %s", text, error.message)
        return False, failed


@dataclass(frozen=True, slots=True)
class GroupSource:
    """A group of statements as a configuration has it.

    Args:
        signal: `logs`, `metrics` or `traces`.
        statements: their text.
        context: whose paths those without prefix are; when empty it is inferred, and every path must have a prefix.
        conditions: the group runs on records for which any of them holds.
        error_mode: see `transform`.
        shared_cache: see `CompiledGroup`.
    """

    signal: str
    statements: tuple[str, ...]
    context: str = ""
    conditions: tuple[str, ...] = ()
    error_mode: str = "ignore"
    shared_cache: bool = False

    def compile(self) -> CompiledGroup:
        """Compile the group.

        Raises:
            OttlError: a statement or condition is wrong.
        """
        trees = [parse(statement) for statement in self.statements]
        qualified, contexts = not self.context, SIGNALS[self.signal]
        if self.context:
            name = context_type(self.context.lower()).name
            if name not in contexts:
                raise OttlCompileError(f'the context "{self.context}" is none of {self.signal}: {", ".join(contexts)}')
        else:
            name = infer_context([*trees, *map(parse_condition, self.conditions)], contexts)
        return CompiledGroup(
            name,
            tuple(compile_statement(node, name, qualified=qualified) for node in trees),
            tuple((text, compile_condition(text, name, qualified=qualified)) for text in self.conditions),
            check_error_mode(self.error_mode),
            self.shared_cache,
        )


def read_config(config: Mapping[str, Any]) -> tuple[GroupSource, ...]:
    """The groups of a `transform:` mapping, in order; see `Processor`.

    Raises:
        ValueError: the mapping is not such a configuration.
    """
    _only(config, _CONFIG_KEYS, "transform")
    error_mode = check_error_mode(config.get("error_mode") or "ignore")
    return tuple(
        source
        for key, signal in STATEMENT_KEYS.items()
        for source in _sources(key, signal, config.get(key) or (), error_mode)
    )


def _sources(key: str, signal: str, entries: Any, error_mode: str) -> Iterator[GroupSource]:
    if not isinstance(entries, (list, tuple)):
        raise ValueError(f"{key} must be a list")
    flat = tuple(entry for entry in entries if isinstance(entry, str))
    if flat:
        if len(flat) != len(entries):
            raise ValueError(f"{key} must be a list of statements or a list of groups, not both")
        yield GroupSource(signal, flat, error_mode=error_mode)
        return
    for number, entry in enumerate(entries):
        where = f"{key}[{number}]"
        if not isinstance(entry, Mapping):
            raise ValueError(f"{where} must be a statement or a group")
        _only(entry, _GROUP_KEYS, where)
        yield GroupSource(
            signal,
            _texts(entry.get("statements"), f"{where}.statements"),
            entry.get("context") or "",
            _texts(entry.get("conditions"), f"{where}.conditions"),
            check_error_mode(entry.get("error_mode") or error_mode),
            bool(entry.get("shared_cache")),
        )


class Processor:
    """A configured transform processor.

    Args:
        config: the mapping under `transform:` in a Collector's configuration: `error_mode` and `log_statements`,
            `metric_statements`, `trace_statements`, each a list of statements or a list of groups
            (`context`, `conditions`, `statements`, `error_mode`, `shared_cache`).

    Raises:
        OttlError: a statement is wrong; it carries the place.
        ValueError: the mapping is not such a configuration.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        sources = read_config(config)
        self.error_mode: ErrorMode = check_error_mode(config.get("error_mode") or "ignore")
        self.groups: dict[str, tuple[CompiledGroup, ...]] = {
            signal: tuple(source.compile() for source in sources if source.signal == signal)
            for signal in STATEMENT_KEYS.values()
        }
        #: Statements and conditions that failed and were passed over, since the start.
        self.failures = 0

    def process_logs(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Run the log statements over `{"resource_logs": [{"resource", "scope_logs": [{"scope", "log_records"}]}]}`.

        The payload is changed in place and given back. Values are plain Python values.
        """
        return self._process(payload, "logs")

    def process_metrics(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Run the metric statements over `{"resource_metrics": [...]}`, in place."""
        return self._process(payload, "metrics")

    def process_traces(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Run the trace statements over `{"resource_spans": [...]}`, in place."""
        return self._process(payload, "traces")

    def process_signals(self, signals: Iterable[Mapping[str, Any]]) -> None:
        """Run the log statements over single log signals, in place.

        Records that share a resource or scope dictionary are taken as one payload: its statements run once on it.
        """
        payload: list[_Resource] = []
        known: dict[int, _Resource] = {}
        scopes: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for signal in signals:
            resource = signal["resource"]
            scope = signal.get("scope")
            entry = known.get(id(resource))
            if entry is None:
                entry = known[id(resource)] = _Resource(resource, [])
                payload.append(entry)
            items = scopes.get((id(resource), id(scope)))
            if items is None:
                items = scopes[id(resource), id(scope)] = []
                entry.scopes.append(({} if scope is None else scope, items))
            items.append(signal["log"])
        self._run("logs", payload)

    def _process(self, payload: dict[str, Any], signal: str) -> dict[str, Any]:
        resources, scopes, items = LEVELS[signal]
        entries = payload.get(resources) or ()
        with_schema: list[tuple[dict[str, Any], dict[str, Any]]] = []
        opened: list[_Resource] = []
        for entry in entries:
            resource = _part(entry, "resource", with_schema)
            inner = [(_part(held, "scope", with_schema), held.get(items) or []) for held in entry.get(scopes) or ()]
            opened.append(_Resource(resource, inner))
        try:
            self._run(signal, opened)
        finally:
            for holder, part in with_schema:
                if (schema := part.pop("schema_url", None)) is not None:
                    holder["schema_url"] = schema
        return payload

    def _run(self, signal: str, payload: Sequence[_Resource]) -> None:
        caches: dict[str, dict[str, Any]] = {}
        for group in self.groups[signal]:
            cache = caches.setdefault(group.context, {}) if group.shared_cache else None
            contexts = _CONTEXTS[group.context]
            for resource in payload:
                for ctx in contexts(resource):
                    if cache is not None:
                        ctx.cache = cache
                    self.failures += group.run(ctx)


@dataclass(slots=True)
class _Resource:
    """A resource and what came from it, by scope."""

    resource: dict[str, Any]
    scopes: list[tuple[dict[str, Any], list[dict[str, Any]]]]


def _part(
    holder: dict[str, Any], name: str, with_schema: list[tuple[dict[str, Any], dict[str, Any]]]
) -> dict[str, Any]:
    """The resource or scope of an entry. OTLP keeps its schema URL beside it; statements see it inside."""
    part: dict[str, Any] = holder.setdefault(name, {})
    if "schema_url" in holder:
        part["schema_url"] = holder["schema_url"]
    with_schema.append((holder, part))
    return part


def _resource_contexts(entry: _Resource) -> Iterator[Context]:
    yield Context(entry.resource, {}, entry.resource)


def _scope_contexts(entry: _Resource) -> Iterator[Context]:
    for scope, _ in entry.scopes:
        yield Context(entry.resource, scope, scope)


def _item_contexts(entry: _Resource) -> Iterator[Context]:
    for scope, items in entry.scopes:
        most = len(items) + MOST_ADDED
        # The list grows while a statement adds metrics: those are visited too, as upstream does.
        for number, item in enumerate(items):
            if number == most:
                raise OttlRuntimeError(f"statements added {MOST_ADDED} metrics to a scope: is a where clause missing?")
            yield Context(entry.resource, scope, item, siblings=items)


def _nested_contexts(
    inner: Callable[[dict[str, Any]], Iterable[dict[str, Any]]],
) -> Callable[[_Resource], Iterator[Context]]:
    def contexts(entry: _Resource) -> Iterator[Context]:
        for scope, items in entry.scopes:
            for item in items:
                for nested in inner(item):
                    yield Context(entry.resource, scope, nested, item, siblings=items)

    return contexts


def _data_points(metric: dict[str, Any]) -> Iterable[dict[str, Any]]:
    from tracecore.ottl.datapoints import data_of

    return data_of(metric).get("data_points") or ()


_CONTEXTS: Final[dict[str, Callable[[_Resource], Iterator[Context]]]] = {
    "resource": _resource_contexts,
    "scope": _scope_contexts,
    "log": _item_contexts,
    "span": _item_contexts,
    "metric": _item_contexts,
    "spanevent": _nested_contexts(lambda span: span.get("events") or ()),
    "datapoint": _nested_contexts(_data_points),
}


def _only(mapping: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in mapping:
        if key not in known:
            hint = nearest(str(key), known)
            raise ValueError(f'{where} has no "{key}"' + (f": {hint}" if hint else ""))


def _texts(value: Any, where: str) -> tuple[str, ...]:
    entries = [] if value is None else value
    if not isinstance(entries, (list, tuple)) or not all(isinstance(entry, str) for entry in entries):
        raise ValueError(f"{where} must be a list of strings")
    return tuple(entries)
