"""`tracecore components`."""

from __future__ import annotations

import sys
from typing import Any

import click

from tracecore.cli.output import json_option


@click.command()
@click.argument("name", required=False)
@json_option("Everything, as JSON on standard output.")
@click.option("--schema", is_flag=True, help="The JSON Schema of a whole configuration, for editors.")
def command(name: str | None, as_json: bool, schema: bool) -> int:
    """List receivers, processors, exporters and extensions, or the options of one.

    Example: tracecore components otlphttp
    """
    import msgspec

    from tracecore.agent.catalogue import factories
    from tracecore.agent.configuration import json_schema
    from tracecore.ottl.errors import nearest

    if schema:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n")
        return 0
    found = [factory for factory in factories() if name is None or name in factory.names]
    if not found:
        hint = nearest(str(name), [name for factory in factories() for name in factory.names])
        raise click.UsageError(f'there is no component "{name}"' + (f"; {hint}" if hint else ""))
    if as_json:
        document = [
            {
                "kind": f.kind,
                "type": f.type,
                "summary": f.summary,
                "signals": [] if f.kind == "extension" else list(f.signals),
                "options": list(_options(f.options)),
            }
            for f in found
        ]
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
        return 0
    for kind in ("receiver", "processor", "exporter", "extension"):
        for factory in found:
            if factory.kind != kind:
                continue
            if name is None:
                click.echo(f"{kind:<10} {factory.type:<16} {factory.summary}")
            else:
                click.echo(f"{kind} {factory.type}: {factory.summary}")
                for option in _options(factory.options):
                    default = "required" if option["required"] else f"default {option['default']}"
                    click.echo(f"  {option['name']:<44} {default:<24} {option['about']}".rstrip())
    return 0


def _options(kind: Any, prefix: str = "") -> Any:
    """The options of a structure, nested ones after a dot."""
    import types
    from typing import Annotated, Union, get_args, get_origin

    import msgspec

    from tracecore.agent.option_schema import descriptions, plain

    about = descriptions(kind)
    for field in msgspec.structs.fields(kind):
        inner = field.type
        if get_origin(inner) is Annotated:
            inner = get_args(inner)[0]
        if get_origin(inner) in (Union, types.UnionType):
            inner = next(k for k in get_args(inner) if k is not type(None))
        suffix = ""
        if get_origin(inner) is list and isinstance(get_args(inner)[0], type):
            inner, suffix = get_args(inner)[0], "[]"
        name = f"{prefix}{field.encode_name}"
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            yield from _options(inner, f"{name}{suffix}.")
            continue
        default = None if field.required else plain(field.default, field.type)
        if default is msgspec.NODEFAULT or field.default is msgspec.NODEFAULT:
            default = None if field.required else []
        yield {
            "name": name,
            "required": field.required,
            "default": msgspec.json.encode(default).decode() if default is not None else "none",
            "about": about.get(field.name, ""),
        }
