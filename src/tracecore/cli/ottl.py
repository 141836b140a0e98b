"""`tracecore ottl`: try statements on records."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from tracecore.cli.output import CommandGroup

if TYPE_CHECKING:
    from tracecore.ottl.processor import Processor

#: Largest input that is read at once: a record or a document, not a log.
MAX_BYTES = 256 << 20


@click.group(name="ottl", cls=CommandGroup)
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
        texts, configs = _read_statements(statements, files)
        if not texts and not configs:
            raise click.UsageError("no statements: give them as arguments or with -s FILE")
        apply = _apply(texts, configs, context, error_mode)
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


def _read_statements(statements: tuple[str, ...], files: tuple[Path, ...]) -> tuple[list[str], list[dict[str, Any]]]:
    """The statements given one by one, and the configurations of processors that files have."""
    texts = list(statements)
    configs: list[dict[str, Any]] = []
    for path in files:
        text = path.read_text(encoding="utf-8")
        if path.suffix in (".yaml", ".yml"):
            configs.extend(_configs(text, path))
        else:
            lines = (line.strip() for line in text.splitlines())
            texts.extend(line for line in lines if line and not line.startswith("#"))
    if configs and texts:
        raise ValueError("statements and a processor configuration cannot be run together")
    return texts, configs


def _configs(text: str, path: Path) -> list[dict[str, Any]]:
    """The transform processors of a file, in its order: the document itself, or those below `processors`."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    from tracecore.ottl.processor import STATEMENT_KEYS

    try:
        document = YAML(typ="safe").load(text)
    except (YAMLError, RecursionError) as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}") from error
    nodes = document.get("processors", document) if isinstance(document, dict) else {}
    if isinstance(nodes, dict) and nodes.keys().isdisjoint(STATEMENT_KEYS):
        named = [value for key, value in nodes.items() if str(key).partition("/")[0] == "transform"]
    else:
        named = [nodes]
    found = [node for node in named if isinstance(node, dict) and not node.keys().isdisjoint(STATEMENT_KEYS)]
    if not found:
        raise ValueError(f"{path}: no log_statements, metric_statements or trace_statements in it")
    return found


def _apply(
    texts: list[str], configs: list[dict[str, Any]], context: str, error_mode: str | None
) -> Callable[[Any], Any]:
    """Return what turns one document into the changed one."""
    from tracecore.ottl.compile import compile_statement
    from tracecore.ottl.contexts import context_type
    from tracecore.ottl.inference import SIGNALS
    from tracecore.ottl.otlpjson import signal_of
    from tracecore.ottl.processor import STATEMENT_KEYS, Processor
    from tracecore.ottl.runner import transform

    if configs:
        override = {"error_mode": error_mode} if error_mode else {}
        processors = [Processor({**config, **override}) for config in configs]
        return lambda document: _process(processors, document)
    mode = error_mode or "propagate"
    name = context_type(context).name
    for text in texts:
        compile_statement(text, name)
    keys = {signal: key for key, signal in STATEMENT_KEYS.items()}

    def apply(document: Any) -> Any:
        signal = signal_of(document)
        if not signal:
            return transform(document, texts, name, mode)
        if name not in SIGNALS[signal]:
            raise TypeError(f"the context {name} is none of {signal}: use --context with {', '.join(SIGNALS[signal])}")
        group = {"context": name, "statements": texts}
        return _process([Processor({keys[signal]: [group], "error_mode": mode})], document)

    return apply


def _process(processors: list[Processor], document: Any) -> Any:
    """A payload of OTLP in either spelling, or one plain log record, through processors."""
    from tracecore.ottl.otlpjson import decode, encode, signal_of

    signal = signal_of(document)
    if not signal:
        if not isinstance(document.get("log"), dict):
            raise TypeError('a processor needs an OTLP document or a record with a "log"')
        document.setdefault("resource", {})
        for processor in processors:
            processor.process_signals([document])
        return document
    camel = any("_" not in key for key in document)
    payload = decode(document) if camel else document
    for processor in processors:
        run_on = {
            "logs": processor.process_logs,
            "metrics": processor.process_metrics,
            "traces": processor.process_traces,
        }
        payload = run_on[signal](payload)
    return encode(payload) if camel else payload


def _documents(source: IO[bytes]) -> Iterator[dict[str, Any]]:
    """The records of an input: one JSON document, or one on each line."""
    data = source.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise click.ClickException(f"more than {MAX_BYTES >> 20} MiB: give records in smaller pieces")
    text = data.decode("utf-8", "surrogateescape")
    try:
        documents = [json.loads(text)]
    except RecursionError:
        raise click.ClickException("the input is nested too deeply") from None
    except ValueError:
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
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"line {number} of the input is not JSON: {error}") from error


def _dump(document: Any) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            import base64

            return base64.b64encode(value).decode()
        return str(value)

    indent = 2 if sys.stdout.isatty() else None
    text = json.dumps(document, default=plain, ensure_ascii=False, indent=indent)
    # Half of a surrogate pair cannot be printed: escape what JSON escapes.
    return text.encode("utf-8", "backslashreplace").decode()
