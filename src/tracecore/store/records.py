"""Answers of the store: plain structs. Times are nanoseconds since the epoch (`Time`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

#: Nanoseconds since the epoch; RFC 3339 in the API.
Time: TypeAlias = Annotated[int, msgspec.Meta(extra_json_schema={"type": "string", "format": "date-time"})]

IncidentState: TypeAlias = Literal["open", "diagnosed", "resolved"]
JobState: TypeAlias = Literal["running", "failed", "finished", "unknown"]
NodeState: TypeAlias = Literal["healthy", "degraded", "failed", "silent"]


class IncidentRow(msgspec.Struct, kw_only=True):
    """One line of a list of incidents.

    Args:
        decision: `retry`, `stop` or `none`; empty where nobody decided.
        nodes: the suspects, at most eight.
        ranks: the suspects, at most eight.
        origin: `live`, `publish` or `upload`.
    """

    id: str
    revision: int
    state: IncidentState
    headline: str
    pattern: str
    fingerprint: str
    failure_class: str
    decision: str
    job: str
    attempt: int
    tenant: str
    origin: str
    nodes: list[str]
    ranks: list[int]
    first_seen: Time
    last_seen: Time
    updated_at: Time
    resolved_at: Time | None
    resolved_by: str
    acknowledged_at: Time | None
    acknowledged_by: str
    lost_gpu_hours: float


class IncidentPage(msgspec.Struct, kw_only=True):
    """Some incidents, newest first, and where the next ones begin."""

    incidents: list[IncidentRow]
    next: str | None = None


class Revision(msgspec.Struct, kw_only=True):
    """A revision of an incident."""

    revision: int
    state: IncidentState
    at: Time
    reason: str
    headline: str


class RevisionPage(msgspec.Struct, kw_only=True):
    revisions: list[Revision]


class CitedEvidence(msgspec.Struct, kw_only=True):
    """One piece of evidence.

    Args:
        verdict: the id of the verdict that cites it.
        uid: where it was read.
        text: what it says, in words.
        lines: the log lines it was read from, where they were sent.
    """

    verdict: str
    kind: str
    uid: str
    time: Time
    text: str
    lines: list[str]


class Note(msgspec.Struct, kw_only=True):
    number: int
    at: Time
    author: str
    text: str


class Acknowledgement(msgspec.Struct, kw_only=True):
    """Somebody acknowledged, resolved or reopened an incident."""

    at: Time
    who: str
    what: Literal["acknowledge", "unacknowledge", "resolve", "reopen"]
    comment: str


class Notification(msgspec.Struct, kw_only=True):
    """A message about an incident: on its way, sent or refused.

    Args:
        revision: of the incident, as the message tells it.
        reason: why it was sent: `opened`, `joined`, `updated`, `resolved`, `repeated`.
        title: its first line.
    """

    number: int
    incident: str
    revision: int
    receiver: str
    reason: str
    title: str
    state: Literal["pending", "sending", "sent", "failed"]
    tries: int
    due_at: Time
    created_at: Time
    sent_at: Time | None
    error: str


class Action(msgspec.Struct, kw_only=True):
    """Something that was done, or would have been, about an incident or a node."""

    number: int
    incident: str
    kind: str
    target: str
    state: str
    reason: str
    result: str
    who: str
    created_at: Time
    updated_at: Time


class IncidentDetail(msgspec.Struct, kw_only=True):
    """Everything about one incident.

    Args:
        document: the incident as in `docs/diagnosis.schema.json`.
        verdicts: documents of the verdicts it is made of, the root first.
        not_sent: why receivers were not notified; empty where all were.
    """

    incident: IncidentRow
    document: dict[str, Any]
    verdicts: list[dict[str, Any]]
    evidence: list[CitedEvidence]
    revisions: list[Revision]
    notes: list[Note]
    acknowledgements: list[Acknowledgement]
    notifications: list[Notification]
    actions: list[Action]
    not_sent: list[str] = []


class JobRow(msgspec.Struct, kw_only=True):
    """One line of a list of jobs."""

    name: str
    tenant: str
    state: JobState
    ranks: int
    gpus: int
    step: int | None
    total_steps: int | None
    first_seen: Time
    last_seen: Time
    attempts: int
    incidents: int
    open_incidents: int


class JobPage(msgspec.Struct, kw_only=True):
    jobs: list[JobRow]
    next: str | None = None


class Attempt(msgspec.Struct, kw_only=True):
    """One start of a job, 0 the first."""

    attempt: int
    state: JobState
    started_at: Time
    ended_at: Time | None
    first_step: int | None
    last_step: int | None
    exit_code: int | None
    reason: str
    nodes: list[str]


class ProgressPoint(msgspec.Struct, kw_only=True):
    """One report of progress; `step_s` and `data_s` are seconds of the step and of waiting for data."""

    time: Time
    rank: int
    attempt: int
    step: int | None
    loss: float | None
    step_s: float | None
    data_s: float | None


class JobDetail(msgspec.Struct, kw_only=True):
    """Everything about one job.

    Args:
        goodput: the share of its time, 0 to 1, in which attempts ran that did not lose their steps; None where
            unknown.
    """

    job: JobRow
    attempts: list[Attempt]
    nodes: list[str]
    incidents: list[IncidentRow]
    goodput: float | None


class Gpu(msgspec.Struct, kw_only=True):
    gpu: str
    state: NodeState
    reason: str
    model: str
    last_seen: Time


class NodeRow(msgspec.Struct, kw_only=True):
    """One node with its GPUs.

    Args:
        state: what holds now: a person's override, else what the facts say.
        override: set by a person; empty where nobody did.
    """

    name: str
    state: NodeState
    reason: str
    override: str
    override_by: str
    first_seen: Time
    last_seen: Time
    incidents: int
    gpus: list[Gpu]


class NodePage(msgspec.Struct, kw_only=True):
    nodes: list[NodeRow]
    next: str | None = None


class NodeEvent(msgspec.Struct, kw_only=True):
    """An Xid, an ECC error, throttling, a link that went down, a reboot."""

    time: Time
    uid: str
    kind: str
    gpu: str
    value: float | None
    text: str


class NodeDetail(msgspec.Struct, kw_only=True):
    node: NodeRow
    incidents: list[IncidentRow]
    events: list[NodeEvent]
    jobs: list[JobRow]
    actions: list[Action]


class Cause(msgspec.Struct, kw_only=True):
    """Interruptions of one day by one cause; `pattern` is empty where none was found."""

    day: str
    pattern: str
    failure_class: str
    incidents: int
    lost_gpu_hours: float


class Recurring(msgspec.Struct, kw_only=True):
    """A fingerprint that came back."""

    fingerprint: str
    pattern: str
    headline: str
    incidents: int
    last_seen: Time


class RecurringNode(msgspec.Struct, kw_only=True):
    name: str
    incidents: int
    last_seen: Time


class Overview(msgspec.Struct, kw_only=True):
    """The first page.

    Args:
        open: unresolved incidents, newest first, at most fifty.
        open_count: all of them.
        nodes: how many nodes are in each state.
        jobs: how many jobs are in each state.
        causes: by day (UTC) and pattern, for the last `days` days.
    """

    at: Time
    days: int
    open: list[IncidentRow]
    open_count: int
    unacknowledged: int
    nodes: dict[str, int]
    jobs: dict[str, int]
    causes: list[Cause]
    lost_gpu_hours: float
    fingerprints: list[Recurring]
    recurring_nodes: list[RecurringNode]


class Matcher(msgspec.Struct, kw_only=True, frozen=True):
    """Alertmanager's matcher; names are those of `Silence`'s labels: incident, job, node, pattern, class, tenant."""

    name: str
    op: Literal["=", "!=", "=~", "!~"] = "="
    value: str = ""


class Silence(msgspec.Struct, kw_only=True):
    """No notifications about incidents that match, for a time."""

    id: str
    matchers: list[Matcher]
    comment: str
    created_by: str
    created_at: Time
    starts_at: Time
    ends_at: Time
    tenant: str


class SilencePage(msgspec.Struct, kw_only=True):
    silences: list[Silence]


class ApiToken(msgspec.Struct, kw_only=True):
    """An API token without its secret."""

    id: str
    name: str
    scopes: list[str]
    tenant: str
    created_by: str
    created_at: Time
    expires_at: Time | None
    used_at: Time | None
    revoked_at: Time | None


class TokenPage(msgspec.Struct, kw_only=True):
    tokens: list[ApiToken]


class AuditEntry(msgspec.Struct, kw_only=True):
    number: int
    at: Time
    who: str
    address: str
    what: str
    target: str
    detail: str


class Upload(msgspec.Struct, kw_only=True):
    """An uploaded bundle and how its diagnosis goes.

    Args:
        progress: what it does now, in words.
        incidents: ids of what was found.
    """

    id: str
    name: str
    size: int
    state: Literal["queued", "running", "done", "failed"]
    progress: str
    error: str
    created_by: str
    tenant: str
    created_at: Time
    started_at: Time | None
    finished_at: Time | None
    incidents: list[str]


class UploadPage(msgspec.Struct, kw_only=True):
    diagnoses: list[Upload]
    next: str | None = None


class Change(msgspec.Struct, kw_only=True):
    """Something that a page may want to show again."""

    number: int
    at: Time
    kind: str
    name: str
    tenant: str
    detail: str
