"""Payloads of NVSentinel and Alertmanager, checked and read as reports."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from tracecore.facts.coerce import moment
from tracecore.server.webhooks.report import MAX_NAME, HealthReport, pci_of, text_of

#: Reports of one request.
MOST: Final = 1_000
#: Digits of an error's number.
MAX_CODE: Final = 6
#: Labels in which alerts say where and what.
_NODE: Final = ("node", "Hostname", "hostname", "host", "kubernetes_node", "nodename", "instance")
_PCI: Final = ("pci_bus_id", "pci", "busid")
_CODE: Final = ("xid", "sxid", "err_code", "error_code", "code")
#: What two sendings of one health event have in common.
_SAME: Final = ("nodeName", "agent", "checkName", "generatedTimestamp", "isHealthy", "errorCode", "entitiesImpacted",
                "message")  # fmt: skip


class BadPayload(ValueError):
    """It is not what this sender sends; the message says why."""


def in_one_piece(headers: Mapping[str, str], payload: object) -> object:
    """A CloudEvent in binary mode, whose attributes are headers, as one in structured mode; anything else as it is."""
    if "ce-specversion" not in headers:
        return payload
    return {
        name: unquote(value) for name in ("specversion", "id", "source", "time") if (value := headers.get(f"ce-{name}"))
    } | {"data": payload}


def nvsentinel(payload: object, now: int) -> list[HealthReport]:
    """Read CloudEvents of NVSentinel's event exporter: one, or a batch.

    Raises:
        BadPayload: they are none.
    """
    events = payload if isinstance(payload, list) else [payload]
    if len(events) > MOST:
        raise BadPayload(f"more than {MOST} events in one request")
    found = []
    for event in events:
        if not isinstance(event, dict) or event.get("specversion") != "1.0":
            raise BadPayload("expected a CloudEvent with specversion 1.0")
        data = event.get("data")
        health = data.get("healthEvent") if isinstance(data, dict) else None
        ident = text_of(event.get("id"), 100)
        if not isinstance(health, dict) or not ident:
            raise BadPayload("expected an id and data.healthEvent")
        found.append(_health_event(event, health, ident, now))
    return found


def _health_event(event: dict[str, Any], health: dict[str, Any], ident: str, now: int) -> HealthReport:
    entities = health.get("entitiesImpacted")
    places = {
        str(one.get("entityType", "")).upper(): one.get("entityValue")
        for one in (entities if isinstance(entities, list) else ())
        if isinstance(one, dict)
    }
    codes = health.get("errorCode")
    codes = codes if isinstance(codes, list) else [codes]
    code = next((found for one in codes if (found := _number(one))), "")
    made = moment(health.get("generatedTimestamp"))
    if made:
        # The exporter gives an event a new id when it sends it again after a restart; what the event says stays.
        ident = hashlib.blake2b(msgspec.json.encode([health.get(name) for name in _SAME]), digest_size=16).hexdigest()
    return HealthReport(
        origin="nvsentinel",
        ident=f"{text_of(event.get('source'), 200)}/{ident}",
        name=text_of(health.get("checkName"), MAX_NAME),
        healthy=health.get("isHealthy") is True,
        message=text_of(health.get("message")),
        node=text_of(health.get("nodeName"), MAX_NAME),
        code=code,
        pci=pci_of(places.get("PCI")),
        time=made or moment(event.get("time")) or now,
    )


def _number(code: object) -> str:
    """The number of an error code: `79`, `XID_79`; empty where it has none."""
    text = str(code) if isinstance(code, str | int) and len(str(code)) < 40 else ""
    number = text.rpartition("_")[2] if text.upper().startswith(("XID_", "SXID_")) else text
    return number if number.isdecimal() and len(number) <= MAX_CODE else ""


def alertmanager(payload: object, now: int) -> list[HealthReport]:
    """Read what Alertmanager posts to a webhook (version 4).

    Raises:
        BadPayload: it is something else.
    """
    alerts = payload.get("alerts") if isinstance(payload, dict) else None
    if not isinstance(alerts, list):
        raise BadPayload("expected Alertmanager's webhook payload, with `alerts`")
    if isinstance(payload, dict) and str(payload.get("version", "4")) != "4":
        raise BadPayload(f"expected version 4 of Alertmanager's webhook payload, not {str(payload['version'])[:40]!r}")
    if len(alerts) > MOST:
        raise BadPayload(f"more than {MOST} alerts in one request; set max_alerts")
    return [_alert(alert, now) for alert in alerts if isinstance(alert, dict)]


def _alert(alert: dict[str, Any], now: int) -> HealthReport:
    labels, notes = _texts(alert.get("labels")), _texts(alert.get("annotations"))
    healthy = alert.get("status") == "resolved"
    began = moment(alert.get("startsAt")) or now
    time = (moment(alert.get("endsAt")) or now) if healthy else began
    code = next((found for name in _CODE if (found := _number(labels.get(name)))), "")
    node = next((labels[name] for name in _NODE if labels.get(name)), "")
    return HealthReport(
        origin="alertmanager",
        # An alert that fires again later is another report; one that is sent again is not.
        ident=f"{text_of(alert.get('fingerprint'), 64)}/{began}/{'resolved' if healthy else 'firing'}",
        name=labels.get("alertname", "")[:MAX_NAME],
        healthy=healthy,
        message=text_of(notes.get("description") or notes.get("summary") or notes.get("message")),
        # `instance` has a port; an IPv6 address is written in brackets then.
        node=(node[1:].partition("]")[0] if node.startswith("[") else node.partition(":")[0])[:MAX_NAME],
        code=code,
        pci=next((found for name in _PCI if (found := pci_of(labels.get(name)))), ""),
        time=time,
    )


def _texts(value: object) -> dict[str, str]:
    return {str(name): text for name, text in value.items() if isinstance(text, str)} if isinstance(value, dict) else {}
