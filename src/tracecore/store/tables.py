"""The tables. Times are integer nanoseconds since the epoch; documents are JSON text.

A change here needs a migration in `store/migrations`; a test compares both.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

#: SQLite numbers rows by itself only in a column of this exact type.
_Number = BigInteger().with_variant(Integer, "sqlite")


def _number() -> Column[int]:
    return Column("number", _Number, primary_key=True, autoincrement=True)


def _incident(**options: object) -> Column[int]:
    """A reference to an incident by its number."""
    own = ForeignKey("incidents.number", ondelete="CASCADE")
    return Column("incident", _Number, own, nullable=False, **options)  # type: ignore[arg-type]


NAME: Final = 300

incidents = Table(
    "incidents",
    metadata,
    _number(),
    Column("id", String(80), nullable=False, unique=True),
    Column("revision", Integer, nullable=False),
    # open, diagnosed or resolved
    Column("state", String(16), nullable=False),
    # 1 until it is resolved
    Column("active", Integer, nullable=False),
    Column("headline", Text, nullable=False),
    Column("pattern", String(80), nullable=False),
    Column("fingerprint", String(120), nullable=False),
    Column("failure_class", String(20), nullable=False),
    Column("decision", String(16), nullable=False),
    Column("job", String(NAME), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("tenant", String(80), nullable=False),
    # live, publish or upload
    Column("origin", String(16), nullable=False),
    Column("places", Text, nullable=False),
    Column("first_seen", BigInteger, nullable=False),
    Column("last_seen", BigInteger, nullable=False),
    Column("stored_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("resolved_at", BigInteger),
    # empty unless a person resolved it
    Column("resolved_by", String(NAME), nullable=False, default=""),
    Column("acknowledged_at", BigInteger),
    Column("acknowledged_by", String(NAME), nullable=False, default=""),
    Column("lost_gpu_seconds", Float, nullable=False, default=0.0),
    Column("digest", String(32), nullable=False),
    Column("document", Text, nullable=False),
    Index("incidents_by_time", "first_seen", "number"),
    Index("incidents_active", "active", "first_seen", "number"),
    Index("incidents_by_job", "job", "first_seen", "number"),
    Index("incidents_by_pattern", "pattern", "first_seen", "number"),
    Index("incidents_by_fingerprint", "fingerprint", "first_seen", "number"),
    Index("incidents_by_class", "failure_class", "first_seen", "number"),
    Index("incidents_by_tenant", "tenant", "first_seen", "number"),
    # These answer the overview's sums without reading the rows.
    Index("incidents_fingerprints", "first_seen", "fingerprint", "tenant", "number"),
    Index("incidents_summary", "first_seen", "pattern", "failure_class", "tenant", "lost_gpu_seconds"),
    sqlite_autoincrement=True,
)

incident_entities = Table(
    "incident_entities",
    metadata,
    _incident(primary_key=True),
    # node, pod, gpu or rank
    Column("kind", String(8), primary_key=True),
    Column("name", String(NAME), primary_key=True),
    # Those of the incident: lists and sums by node need no look at the incidents.
    Column("first_seen", BigInteger, nullable=False),
    Column("tenant", String(80), nullable=False),
    Index("entities_by_name", "kind", "name", "first_seen", "incident"),
    Index("entities_by_time", "kind", "first_seen", "name", "tenant"),
)

revisions = Table(
    "revisions",
    metadata,
    _incident(primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("state", String(16), nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("headline", Text, nullable=False),
    Column("document", Text, nullable=False),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("id", String(120), primary_key=True),
    Column("revision", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("pattern", String(80), nullable=False),
    Column("role", String(16), nullable=False),
    Column("headline", Text, nullable=False),
    Column("job", String(NAME), nullable=False),
    Column("node", String(NAME), nullable=False),
    Column("tenant", String(80), nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
    Index("verdicts_by_time", "time"),
)

incident_verdicts = Table(
    "incident_verdicts",
    metadata,
    _incident(primary_key=True),
    Column("verdict", String(120), primary_key=True),
    # The root cause is 0.
    Column("position", Integer, nullable=False),
    Index("incidents_by_verdict", "verdict"),
)

evidence = Table(
    "evidence",
    metadata,
    _incident(primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("verdict", String(120), nullable=False),
    Column("kind", String(40), nullable=False),
    Column("uid", Text, nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("text", Text, nullable=False),
    # Quoted log lines, a JSON list.
    Column("lines", Text, nullable=False, default="[]"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("name", String(NAME), primary_key=True),
    Column("tenant", String(80), nullable=False),
    # running, failed, finished or unknown
    Column("state", String(16), nullable=False),
    Column("ranks", Integer, nullable=False, default=0),
    Column("gpus", Integer, nullable=False, default=0),
    Column("step", BigInteger),
    Column("total_steps", BigInteger),
    Column("first_seen", BigInteger, nullable=False),
    Column("last_seen", BigInteger, nullable=False),
    Index("jobs_by_time", "last_seen", "name"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("job", String(NAME), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("state", String(16), nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
    Column("exit_code", Integer),
    Column("reason", Text, nullable=False, default=""),
    Column("nodes", Text, nullable=False, default="[]"),
)

job_progress = Table(
    "job_progress",
    metadata,
    Column("job", String(NAME), primary_key=True),
    Column("time", BigInteger, primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("step", BigInteger),
    Column("loss", Float),
    Column("step_s", Float),
    Column("data_s", Float),
)

job_nodes = Table(
    "job_nodes",
    metadata,
    Column("job", String(NAME), primary_key=True),
    Column("node", String(NAME), primary_key=True),
    Column("last_seen", BigInteger, nullable=False),
    Index("jobs_by_node", "node", "last_seen"),
)

nodes = Table(
    "nodes",
    metadata,
    Column("name", String(NAME), primary_key=True),
    # healthy, degraded, failed or silent
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False, default=""),
    # Set by a person; it wins over `state` until it is cleared.
    Column("override", String(16), nullable=False, default=""),
    Column("override_by", String(NAME), nullable=False, default=""),
    Column("first_seen", BigInteger, nullable=False),
    Column("last_seen", BigInteger, nullable=False),
    Column("state_at", BigInteger, nullable=False),
    # When facts of it came last; empty for a node that only incidents speak of.
    Column("heard_at", BigInteger),
)

gpus = Table(
    "gpus",
    metadata,
    Column("node", String(NAME), primary_key=True),
    Column("gpu", String(80), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False, default=""),
    Column("model", String(120), nullable=False, default=""),
    Column("last_seen", BigInteger, nullable=False),
)

node_events = Table(
    "node_events",
    metadata,
    Column("node", String(NAME), primary_key=True),
    Column("time", BigInteger, primary_key=True),
    # Names the fact, so that a fact that arrives twice is one event.
    Column("uid", String(80), primary_key=True),
    # xid, ecc, throttle, link, pcie, host or other
    Column("kind", String(16), nullable=False),
    Column("gpu", String(80), nullable=False, default=""),
    Column("value", Float),
    Column("text", Text, nullable=False),
    Index("node_events_by_time", "time"),
)

notes = Table(
    "notes",
    metadata,
    _number(),
    _incident(index=True),
    Column("at", BigInteger, nullable=False),
    Column("author", String(NAME), nullable=False),
    Column("text", Text, nullable=False),
    sqlite_autoincrement=True,
)

acknowledgements = Table(
    "acknowledgements",
    metadata,
    _number(),
    _incident(index=True),
    Column("at", BigInteger, nullable=False),
    Column("who", String(NAME), nullable=False),
    # acknowledge, unacknowledge, resolve or reopen
    Column("what", String(16), nullable=False),
    Column("comment", Text, nullable=False, default=""),
    sqlite_autoincrement=True,
)

silences = Table(
    "silences",
    metadata,
    Column("id", String(40), primary_key=True),
    # Alertmanager's matchers: a JSON list of {name, op, value}.
    Column("matchers", Text, nullable=False),
    Column("comment", Text, nullable=False),
    Column("created_by", String(NAME), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("starts_at", BigInteger, nullable=False),
    Column("ends_at", BigInteger, nullable=False),
    Column("tenant", String(80), nullable=False, default=""),
    Index("silences_by_end", "ends_at"),
)

notifications = Table(
    "notifications",
    metadata,
    _number(),
    _incident(index=True),
    Column("revision", Integer, nullable=False),
    Column("receiver", String(NAME), nullable=False),
    # The same for every attempt at one message.
    Column("delivery", String(120), nullable=False),
    # opened, joined, updated, resolved or repeated
    Column("reason", String(16), nullable=False),
    Column("title", Text, nullable=False),
    # pending, sending, sent or failed
    Column("state", String(16), nullable=False),
    Column("tries", Integer, nullable=False, default=0),
    Column("due_at", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("sent_at", BigInteger),
    Column("error", Text, nullable=False, default=""),
    UniqueConstraint("incident", "receiver", "delivery"),
    sqlite_autoincrement=True,
)

notification_groups = Table(
    "notification_groups",
    metadata,
    _number(),
    # The id of its first incident: receivers update in place by it.
    Column("key", String(80), nullable=False),
    Column("receiver", String(NAME), nullable=False),
    # Which of the receiver's ways, `slack/0`.
    Column("way", String(40), nullable=False),
    Column("route", String(80), nullable=False),
    # The labels that make the group, as JSON.
    Column("labels", Text, nullable=False),
    # 1 while incidents can join it
    Column("active", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    # When to look at it next; empty where only a change of an incident can matter.
    Column("next_at", BigInteger),
    # When the message that is not delivered yet was first due.
    Column("due_at", BigInteger),
    Column("sent_at", BigInteger),
    Column("noticed_at", BigInteger),
    Column("deliveries", Integer, nullable=False, default=0),
    # The delivery under way; after a crash nobody knows whether it arrived.
    Column("sending", String(120), nullable=False, default=""),
    # What that delivery says, as JSON.
    Column("outgoing", Text),
    Column("tries", Integer, nullable=False, default=0),
    Column("error", Text, nullable=False, default=""),
    # What the receiver needs to change its message, as JSON.
    Column("reference", Text, nullable=False, default="{}"),
    Index("notification_groups_due", "active", "next_at"),
    Index("notification_groups_by_name", "active", "receiver", "way"),
    sqlite_autoincrement=True,
)

notification_members = Table(
    "notification_members",
    metadata,
    Column(
        "notification_group",
        _Number,
        ForeignKey("notification_groups.number", ondelete="CASCADE"),
        primary_key=True,
        nullable=False,
    ),
    _incident(primary_key=True),
    Column("joined_at", BigInteger, nullable=False),
    # firing, resolved, or empty where it was never told
    Column("told", String(16), nullable=False, default=""),
    Column("told_digest", String(32), nullable=False, default=""),
    # Why it is not told: a silence, another incident, a mute time. Empty where nothing keeps it back.
    Column("suppressed", Text),
    Index("notification_members_by_incident", "incident"),
)

actions = Table(
    "actions",
    metadata,
    _number(),
    # An action may concern a node alone.
    Column("incident", _Number, ForeignKey("incidents.number", ondelete="CASCADE"), index=True),
    # Names the action, so that it is taken once.
    Column("key", String(200), nullable=False, unique=True),
    Column("kind", String(40), nullable=False),
    Column("target", String(NAME), nullable=False),
    # planned, running, done, failed or dry_run
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("result", Text, nullable=False, default=""),
    Column("who", String(NAME), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Index("actions_by_target", "kind", "target", "created_at"),
    sqlite_autoincrement=True,
)

api_tokens = Table(
    "api_tokens",
    metadata,
    # The public part of a token; the rest is only kept as a hash.
    Column("id", String(24), primary_key=True),
    Column("name", String(NAME), nullable=False),
    Column("hash", Text, nullable=False),
    Column("scopes", String(80), nullable=False),
    Column("tenant", String(80), nullable=False, default=""),
    Column("created_by", String(NAME), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("used_at", BigInteger),
    Column("revoked_at", BigInteger),
)

audit = Table(
    "audit",
    metadata,
    _number(),
    Column("at", BigInteger, nullable=False, index=True),
    Column("who", String(NAME), nullable=False),
    Column("address", String(80), nullable=False),
    Column("what", String(40), nullable=False),
    Column("target", String(NAME), nullable=False),
    Column("detail", Text, nullable=False, default=""),
    sqlite_autoincrement=True,
)

diagnoses = Table(
    "diagnoses",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("name", String(NAME), nullable=False),
    Column("size", BigInteger, nullable=False),
    # queued, running, done or failed
    Column("state", String(16), nullable=False),
    Column("progress", Text, nullable=False, default=""),
    Column("error", Text, nullable=False, default=""),
    Column("created_by", String(NAME), nullable=False),
    Column("tenant", String(80), nullable=False, default=""),
    Column("created_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("worker", String(80), nullable=False, default=""),
    Column("incidents", Text, nullable=False, default="[]"),
    Column("document", Text),
    Column("page", Text),
    Index("diagnoses_by_time", "created_at"),
)

changes = Table(
    "changes",
    metadata,
    _number(),
    Column("at", BigInteger, nullable=False, index=True),
    # incident, node, job, diagnosis or silence
    Column("kind", String(16), nullable=False),
    Column("name", String(NAME), nullable=False),
    Column("tenant", String(80), nullable=False, default=""),
    Column("detail", Text, nullable=False, default=""),
    sqlite_autoincrement=True,
)

detector_state = Table(
    "detector_state",
    metadata,
    Column("key", String(200), primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

decisions = Table(
    "decisions",
    metadata,
    Column("job", String(NAME), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("tenant", String(80), primary_key=True),
    Column("at", BigInteger, nullable=False),
    # The answer: a repeated request gets the same one.
    Column("answer", Text, nullable=False),
)

ledgers = Table(
    "ledgers",
    metadata,
    Column("job", String(NAME), primary_key=True),
    Column("tenant", String(80), primary_key=True),
    Column("updated_at", BigInteger, nullable=False),
    # `actions.ledger.Ledger` as JSON.
    Column("ledger", Text, nullable=False),
)

inbox = Table(
    "inbox",
    metadata,
    _number(),
    Column("at", BigInteger, nullable=False),
    Column("tenant", String(80), nullable=False),
    # An OTLP export request with facts, as it came.
    Column("payload", LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(80), primary_key=True),
    Column("owner", String(80), nullable=False),
    Column("until", BigInteger, nullable=False),
)
