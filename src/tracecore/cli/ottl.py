"""`tracecore ottl`: try statements on records."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tracecore.ottl.processor import Processor

#: Largest input that is read at once: a record or a document, not a log.
MAX_BYTES = 256 << 20


@click.group(name="ottl")
def command() -> None:
    """Try OTTL statements on a record.

    Example: echo '{"log": {"body": "hello"}}' | tracecore ottl run 'set(attributes["greeting"], body)'
    """


@command.command(name="run")
@click.argument("statements", nargs=-1)
@click.option(
    "-s",
    "--statements",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with one statement on each line, or the YAML of a transform processor. Can be given again.",
)
@click.option(
    "-r",
    "--record",
    "source",
    type=click.File("rb"),
    default="-",
    help="JSON: one record, one on each line, or an OTLP document. Default: standard input.",
)
@click.option(
    "--context",
    default="log",
    show_default=True,
    help="What a path without prefix belongs to: resource, scope, log, span, spanevent, metric, datapoint.",
)
@click.option(
    "--error-mode",
    type=click.Choice(["ignore", "silent", "propagate"]),
    default=None,
    help="What a statement that fails on a record does. Default: propagate, or what the YAML says.",
)
def run(
    statements: tuple[str, ...], files: tuple[Path, ...], source: IO[bytes], context: str, error_mode: str | None
) -> int:
    """Run STATEMENTS on records and print the changed records as JSON.

    A record is {"resource": {"attributes": {}}, "scope": {}, "log": {"body": ..., "attributes": {}}}.
    Exit status: 2 when a statement is wrong, 1 when one fails on a record.

    Example: tracecore ottl run -r record.json 'set(severity_text, "ERROR") where IsMatch(body, "(?i)error")'
    """
    from tracecore.ottl.errors import OttlError
    from tracecore.ottl.otlpjson import PayloadError

    try:
        texts, config = _read_statements(statements, files)
        if not texts and config is None:
            raise click.UsageError("no statements: give them as arguments or with -s FILE")
        apply = _apply(texts, config, context, error_mode)
    except OttlError as error:
        click.echo(error.render(), err=True)
        return 2
    except ValueError as error:
        click.echo(str(error), err=True)
        return 2
    failed = 0
    for number, document in enumerate(_documents(source), 1):
        try:
            click.echo(_dump(apply(document)))
        except OttlError as error:
            failed += 1
            click.echo(f"record {number}: {error.render()}", err=True)
        except (PayloadError, TypeError) as error:
            failed += 1
            click.echo(f"record {number}: {error}", err=True)
    return 1 if failed else 0


def _read_statements(statements: tuple[str, ...], files: tuple[Path, ...]) -> tuple[list[str], dict[str, Any] | None]:
    """The statements given one by one, and the configuration of a processor where a file has one."""
    texts = list(statements)
    config: dict[str, Any] | None = None
    for path in files:
        text = path.read_text(encoding="utf-8")
        found = _config(text, path) if path.suffix in (".yaml", ".yml") else None
        if found is None:
            lines = (line.strip() for line in text.splitlines())
            texts.extend(line for line in lines if line and not line.startswith("#"))
        elif config is not None:
            raise ValueError(f"{path}: only one processor configuration can be run at a time")
        else:
            config = found
    if config is not None and texts:
        raise ValueError("statements and a processor configuration cannot be run together")
    return texts, config


def _config(text: str, path: Path) -> dict[str, Any]:
    """The mapping of a transform processor: the document itself, or what is below `transform` or `processors`."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    from tracecore.ottl.processor import STATEMENT_KEYS

    try:
        document = YAML(typ="safe").load(text)
    except YAMLError as error:
        raise ValueError(f"{path}: {error}") from error
    pending = [document]
    while pending:
        node = pending.pop(0)
        if isinstance(node, dict):
            if not node.keys().isdisjoint(STATEMENT_KEYS):
                return {key: node[key] for key in node if key in (*STATEMENT_KEYS, "error_mode")}
            pending.extend(
                value for key, value in node.items() if key == "processors" or str(key).startswith("transform")
            )
    raise ValueError(f"{path}: no log_statements, metric_statements or trace_statements in it")


def _apply(texts: list[str], config: dict[str, Any] | None, context: str, error_mode: str | None) -> Any:
    """What turns one document into the changed one."""
    from tracecore.ottl.compile import compile_statement
    from tracecore.ottl.contexts import context_type
    from tracecore.ottl.inference import SIGNALS
    from tracecore.ottl.otlpjson import signal_of
    from tracecore.ottl.processor import Processor
    from tracecore.ottl.runner import transform

    if config is not None:
        processor = Processor({**config, **({"error_mode": error_mode} if error_mode else {})})
        return lambda document: _process(processor, document)
    mode = error_mode or "propagate"
    name = context_type(context).name
    for text in texts:
        compile_statement(text, name)
    key = {"logs": "log_statements", "metrics": "metric_statements", "traces": "trace_statements"}

    def apply(document: Any) -> Any:
        signal = signal_of(document)
        if not signal:
            return transform(document, texts, name, mode)
        if name not in SIGNALS[signal]:
            raise TypeError(f"the context {name} is none of {signal}: use --context with {', '.join(SIGNALS[signal])}")
        group = {"context": name, "statements": texts}
        return _process(Processor({key[signal]: [group], "error_mode": mode}), document)

    return apply


def _process(processor: Processor, document: Any) -> Any:
    """A payload of OTLP in either spelling, or one plain log record, through a processor."""
    from tracecore.ottl.otlpjson import decode, encode, signal_of

    signal = signal_of(document)
    if not signal:
        document.setdefault("resource", {})
        processor.process_signals([document])
        return document
    method = {"logs": processor.process_logs, "metrics": processor.process_metrics, "traces": processor.process_traces}
    camel = any("_" not in key for key in document)
    return encode(method[signal](decode(document))) if camel else method[signal](document)


def _documents(source: IO[bytes]) -> Iterator[dict[str, Any]]:
    """The records of an input: one JSON document, or one on each line."""
    data = source.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise click.ClickException(f"more than {MAX_BYTES >> 20} MiB: give records in smaller pieces")
    text = data.decode("utf-8", "surrogateescape")
    try:
        documents = [json.loads(text)]
    except json.JSONDecodeError:
        documents = [_line(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(documents) == 1 and isinstance(documents[0], list):
        documents = documents[0]
    for number, document in enumerate(documents, 1):
        if not isinstance(document, dict):
            raise click.ClickException(f"record {number} is not a JSON object")
        yield document


def _line(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise click.ClickException(f"line {number} of the input is not JSON: {error}") from error


def _dump(document: Any) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            import base64

            return base64.b64encode(value).decode()
        return str(value)

    indent = 2 if sys.stdout.isatty() else None
    return json.dumps(document, default=plain, ensure_ascii=False, indent=indent)
