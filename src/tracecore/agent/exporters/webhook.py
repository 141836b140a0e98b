"""The `webhook` exporter: verdicts and incidents to people, by Alertmanager or any HTTP endpoint."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.exporters.queue_options import RetryOnFailure, SendingQueue
from tracecore.agent.exporters.sending import Rejected, RetryLater, Sender
from tracecore.agent.http_client import connection_to, credentials, limited, target_of, wrong_headers, wrong_url
from tracecore.agent.options import SECOND, Duration, Secret
from tracecore.agent.printing import visible
from tracecore.agent.processors.patterndetector.verdicts import is_told
from tracecore.agent.tls import ClientTls
from tracecore.patterns.contract import rfc3339

#: Characters of a label and of an annotation: the rest is in the verdict.
MAX_LABEL: Final = 256
MAX_ANNOTATION: Final = 4096
#: Attributes of a verdict that become labels of an alert: few values each, so that alerts can be grouped.
_LABELS = {
    "pattern.id": "pattern_id",
    "pattern.role": "role",
    "pattern.confidence": "confidence",
    "verdict.id": "verdict_id",
    "incident.id": "incident_id",
    "k8s.node.name": "node",
    "host.name": "node",
    "k8s.namespace.name": "namespace",
    "k8s.pod.name": "pod",
    "gen_ai.training.job_id": "job",
}
#: Of an incident only these: an alert is known by its labels, and a better diagnosis is no other alert.
_INCIDENT_LABELS = {"incident.id": "incident_id", "gen_ai.training.job_id": "job"}
_ANNOTATIONS = {"summary": "pattern.headline", "description": "pattern.remediation"}
_INCIDENT_ANNOTATIONS = {
    "summary": "incident.headline",
    "description": "incident.remediation",
    "class": "incident.class",
    "state": "incident.state",
}
#: Fields of the document, and the attributes that they are.
_FIELDS = {
    "id": "verdict.id",
    "revision": "verdict.revision",
    "status": "verdict.status",
    "pattern": "pattern.name",
    "role": "pattern.role",
    "headline": "pattern.headline",
    "remediation": "pattern.remediation",
}
_INCIDENT_FIELDS = {
    "id": "incident.id",
    "revision": "incident.revision",
    "status": "incident.state",
    "pattern": "pattern.name",
    "patterns": "incident.patterns",
    "headline": "incident.headline",
    "remediation": "incident.remediation",
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        url: where to post.
        format: `alertmanager` posts alerts to its API (`…/api/v2/alerts`); `json` posts one document for each verdict
            or update of an incident.
        headers: sent with every request; never logged.
        labels: added to every alert.
        timeout: for one attempt.
        tls: for https.
        sending_queue: what waits.
        retry_on_failure: how often it is tried again.
    """

    url: Secret
    format: Literal["alertmanager", "json"] = "json"
    headers: dict[str, Secret] = {}
    labels: dict[str, str] = {}
    timeout: Duration = 10 * SECOND
    tls: ClientTls = ClientTls()
    sending_queue: SendingQueue = SendingQueue(num_consumers=1)
    retry_on_failure: RetryOnFailure = RetryOnFailure()

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if wrong := wrong_url(self.url):
            yield ("url",), wrong
        yield from wrong_headers(self.headers)


class WebhookExporter(Sender):
    """Posts the verdicts and incidents among the records; other records are passed over."""

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(self._tell, setting, options.sending_queue, options.retry_on_failure, headers=options.headers)
        self._options = options

    def export(self, batch: Batch) -> None:
        if any(True for _ in told(batch)):
            super().export(batch)
        else:
            batch.done()

    def _tell(self, batch: Batch) -> None:
        found = list(told(batch))
        if self._options.format == "alertmanager":
            self._post([alert(attributes, record, self._options.labels) for attributes, record in found])
            return
        for attributes, record in found:
            self._post(_document(attributes, record))

    def _post(self, document: Any) -> None:
        parts = urlsplit(self._options.url)
        connection = connection_to(parts, self._options.timeout / SECOND or None, self._options.tls)
        headers = {"Content-Type": "application/json", "User-Agent": "tracecore"}
        headers |= {**credentials(parts), **self._options.headers}
        try:
            with limited(connection, self._options.timeout / SECOND or None):
                connection.request("POST", target_of(parts), msgspec.json.encode(document), headers)
                with connection.getresponse() as answer:
                    status = answer.status
        except (OSError, http.client.HTTPException) as error:
            raise RetryLater(f"{parts.hostname}: {error or type(error).__name__}") from None
        finally:
            connection.close()
        if status in (408, 429) or status >= 500:
            raise RetryLater(f"HTTP {status}")
        if status >= 300:
            raise Rejected(f"HTTP {status}")


def told(batch: Batch) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Attributes (the resource's among them) and record of every verdict and incident.

    A log line that a parser made attributes of may have the names of a verdict's: only what a detector said counts,
    and no operator of a log can set the scope by which that is known.
    """
    for entry in batch.view().get("resource_logs") or ():
        resource = (entry.get("resource") or {}).get("attributes") or {}
        for scope in entry.get("scope_logs") or ():
            if not is_told(scope):
                continue
            for record in scope.get("log_records") or ():
                own = record.get("attributes") or {}
                if ("verdict.id" in own and "pattern.name" in own) or "incident.id" in own:
                    yield {**resource, **own}, record


def alert(attributes: dict[str, Any], record: dict[str, Any], more: dict[str, str]) -> dict[str, Any]:
    """An alert as Alertmanager's API takes it; what was taken back or resolved has an end."""
    incident = "incident.id" in attributes
    if incident:
        labels = {"alertname": "TracecoreIncident", "severity": "critical", **more}
        ended = attributes.get("incident.state") == "resolved"
    else:
        severity = "critical" if attributes.get("pattern.role") == "cause" else "warning"
        labels = {"alertname": visible(str(attributes["pattern.name"])[:MAX_LABEL]), "severity": severity, **more}
        ended = attributes.get("verdict.status") == "cleared"
    for name, label in (_INCIDENT_LABELS if incident else _LABELS).items():
        if (value := attributes.get(name)) is not None:
            labels.setdefault(label, visible(str(value)[:MAX_LABEL]))
    annotations = _INCIDENT_ANNOTATIONS if incident else _ANNOTATIONS
    made: dict[str, Any] = {
        "labels": labels,
        "annotations": {
            name: visible(str(attributes.get(held, ""))[:MAX_ANNOTATION]) for name, held in annotations.items()
        },
        "startsAt": rfc3339(record.get("time_unix_nano") or 0),
    }
    if ended:
        made["endsAt"] = rfc3339(record.get("observed_time_unix_nano") or record.get("time_unix_nano") or 0)
    return made


def _document(attributes: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    incident = "incident.id" in attributes
    fields = _INCIDENT_FIELDS if incident else _FIELDS
    made = {
        "schema": "tracecore/webhook/v1",
        "time": rfc3339(record.get("time_unix_nano") or 0),
        **{name: attributes.get(held) for name, held in fields.items()},
    }
    if incident:
        return {**made, "incident": _decoded(attributes.get("incident.json"))}
    return {**made, "verdict": _decoded(attributes.get("pattern.verdict_json"))}


def _decoded(text: object) -> Any:
    try:
        return msgspec.json.decode(str(text or ""))
    except msgspec.DecodeError:
        return None
