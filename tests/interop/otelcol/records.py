"""Records as tuples that can be compared, whoever wrote them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Attributes of the resource, attributes, body, time, severity number and text.
Record = tuple[str, ...]


def shown(resource: Any, record: Any) -> Record:
    return (
        json.dumps(resource, sort_keys=True),
        json.dumps(record["attributes"], sort_keys=True),
        json.dumps(record.get("body"), sort_keys=True, default=_encoded),
        str(record.get("time_unix_nano", "")),
        str(record.get("severity_number", "")),
        record.get("severity_text", ""),
    )


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def theirs(path: Path) -> Iterator[Record]:
    for line in filter(None, path.read_text(errors="replace").split("\n")):
        for resource in json.loads(line)["resourceLogs"]:
            attributes = entries(resource["resource"].get("attributes", []))
            for scope in resource["scopeLogs"]:
                for record in scope["logRecords"]:
                    found = {
                        "attributes": entries(record.get("attributes", [])),
                        "body": value(record.get("body")),
                        "severity_text": record.get("severityText", ""),
                    }
                    if "timeUnixNano" in record and record["timeUnixNano"] != "0":
                        found["time_unix_nano"] = record["timeUnixNano"]
                    if record.get("severityNumber"):
                        found["severity_number"] = record["severityNumber"]
                    yield shown(attributes, found)


def entries(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {entry["key"]: value(entry["value"]) for entry in found}


def value(found: dict[str, Any] | None) -> Any:
    if not found:
        return None
    ((kind, held),) = found.items()
    if kind == "doubleValue":
        return float(held)
    if kind == "intValue":
        return int(held)
    if kind == "kvlistValue":
        return entries(held.get("values", []))
    if kind == "arrayValue":
        return [value(item) for item in held.get("values", [])]
    return held
