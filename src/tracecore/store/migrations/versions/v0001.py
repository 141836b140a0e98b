"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "api_tokens",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("scopes", sa.String(length=80), nullable=False),
        sa.Column("tenant", sa.String(length=80), nullable=False),
        sa.Column("created_by", sa.String(length=300), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("used_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "attempts",
        sa.Column("job", sa.String(length=300), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("first_step", sa.BigInteger(), nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", "attempt"),
    )
    op.create_table(
        "audit",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.String(length=300), nullable=False),
        sa.Column("address", sa.String(length=80), nullable=False),
        sa.Column("what", sa.String(length=40), nullable=False),
        sa.Column("target", sa.String(length=300), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"], unique=False)
    op.create_table(
        "changes",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("tenant", sa.String(length=80), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_changes_at"), "changes", ["at"], unique=False)
    op.create_table(
        "decisions",
        sa.Column("job", sa.String(length=300), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("tenant", sa.String(length=80), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", "attempt", "tenant"),
    )
    op.create_table(
        "detector_state",
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "diagnoses",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("progress", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("created_by", sa.String(length=300), nullable=False),
        sa.Column("tenant", sa.String(length=80), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("worker", sa.String(length=80), nullable=False),
        sa.Column("incidents", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=True),
        sa.Column("page", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("diagnoses_by_time", "diagnoses", ["created_at"], unique=False)
    op.create_table(
        "gpus",
        sa.Column("node", sa.String(length=300), nullable=False),
        sa.Column("gpu", sa.String(length=80), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("model", sa.String(length=120), nullable=False),
        sa.Column("last_seen", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("node", "gpu"),
    )
    op.create_table(
        "inbox",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("tenant", sa.String(length=80), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "incidents",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=80), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("active", sa.Integer(), nullable=False),
        sa.Column("headline", sa.Text(), nullable=False),
        sa.Column("pattern", sa.String(length=80), nullable=False),
        sa.Column("fingerprint", sa.String(length=120), nullable=False),
        sa.Column("failure_class", sa.String(length=20), nullable=False),
        sa.Column("decision", sa.String(length=16), nullable=False),
        sa.Column("job", sa.String(length=300), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("tenant", sa.String(length=80), nullable=False),
        sa.Column("origin", sa.String(length=16), nullable=False),
        sa.Column("places", sa.Text(), nullable=False),
        sa.Column("first_seen", sa.BigInteger(), nullable=False),
        sa.Column("last_seen", sa.BigInteger(), nullable=False),
        sa.Column("stored_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("resolved_at", sa.BigInteger(), nullable=True),
        sa.Column("resolved_by", sa.String(length=300), nullable=False),
        sa.Column("acknowledged_at", sa.BigInteger(), nullable=True),
        sa.Column("acknowledged_by", sa.String(length=300), nullable=False),
        sa.Column("lost_gpu_seconds", sa.Float(), nullable=False),
        sa.Column("digest", sa.String(length=32), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("incidents_active", "incidents", ["active", "first_seen", "number"], unique=False)
    op.create_index("incidents_by_class", "incidents", ["failure_class", "first_seen", "number"], unique=False)
    op.create_index("incidents_by_fingerprint", "incidents", ["fingerprint", "first_seen", "number"], unique=False)
    op.create_index("incidents_by_job", "incidents", ["job", "first_seen", "number"], unique=False)
    op.create_index("incidents_by_pattern", "incidents", ["pattern", "first_seen", "number"], unique=False)
    op.create_index("incidents_by_tenant", "incidents", ["tenant", "first_seen", "number"], unique=False)
    op.create_index("incidents_by_time", "incidents", ["first_seen", "number"], unique=False)
    op.create_index(
        "incidents_summary",
        "incidents",
        ["first_seen", "pattern", "failure_class", "tenant", "lost_gpu_seconds"],
        unique=False,
    )
    op.create_table(
        "job_nodes",
        sa.Column("job", sa.String(length=300), nullable=False),
        sa.Column("node", sa.String(length=300), nullable=False),
        sa.Column("last_seen", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", "node"),
    )
    op.create_index("jobs_by_node", "job_nodes", ["node", "last_seen"], unique=False)
    op.create_table(
        "job_progress",
        sa.Column("job", sa.String(length=300), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("loss", sa.Float(), nullable=True),
        sa.Column("step_s", sa.Float(), nullable=True),
        sa.Column("data_s", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("job", "time", "rank"),
    )
    op.create_table(
        "jobs",
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("tenant", sa.String(length=80), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("ranks", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("total_steps", sa.BigInteger(), nullable=True),
        sa.Column("first_seen", sa.BigInteger(), nullable=False),
        sa.Column("last_seen", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_index("jobs_by_time", "jobs", ["last_seen", "name"], unique=False)
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("owner", sa.String(length=80), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "ledgers",
        sa.Column("job", sa.String(length=300), nullable=False),
        sa.Column("tenant", sa.String(length=80), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", "tenant"),
    )
    op.create_table(
        "node_events",
        sa.Column("node", sa.String(length=300), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("uid", sa.String(length=80), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("gpu", sa.String(length=80), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("node", "time", "uid"),
    )
    op.create_index("node_events_by_time", "node_events", ["time"], unique=False)
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("override", sa.String(length=16), nullable=False),
        sa.Column("override_by", sa.String(length=300), nullable=False),
        sa.Column("first_seen", sa.BigInteger(), nullable=False),
        sa.Column("last_seen", sa.BigInteger(), nullable=False),
        sa.Column("state_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "silences",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("matchers", sa.Text(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("created_by", sa.String(length=300), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("starts_at", sa.BigInteger(), nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=False),
        sa.Column("tenant", sa.String(length=80), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("silences_by_end", "silences", ["ends_at"], unique=False)
    op.create_table(
        "verdicts",
        sa.Column("id", sa.String(length=120), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("pattern", sa.String(length=80), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("headline", sa.Text(), nullable=False),
        sa.Column("job", sa.String(length=300), nullable=False),
        sa.Column("node", sa.String(length=300), nullable=False),
        sa.Column("tenant", sa.String(length=80), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("verdicts_by_time", "verdicts", ["time"], unique=False)
    op.create_table(
        "acknowledgements",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("incident", NUMBER, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.String(length=300), nullable=False),
        sa.Column("what", sa.String(length=16), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("number"),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_acknowledgements_incident"), "acknowledgements", ["incident"], unique=False)
    op.create_table(
        "actions",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("incident", NUMBER, nullable=True),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("target", sa.String(length=300), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.Column("who", sa.String(length=300), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("key"),
        sqlite_autoincrement=True,
    )
    op.create_index("actions_by_target", "actions", ["kind", "target", "created_at"], unique=False)
    op.create_index(op.f("ix_actions_incident"), "actions", ["incident"], unique=False)
    op.create_table(
        "evidence",
        sa.Column("incident", NUMBER, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("verdict", sa.String(length=120), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("lines", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("incident", "position"),
    )
    op.create_table(
        "incident_entities",
        sa.Column("incident", NUMBER, nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("incident", "kind", "name"),
    )
    op.create_index("entities_by_name", "incident_entities", ["kind", "name", "incident"], unique=False)
    op.create_table(
        "incident_verdicts",
        sa.Column("incident", NUMBER, nullable=False),
        sa.Column("verdict", sa.String(length=120), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("incident", "verdict"),
    )
    op.create_index("incidents_by_verdict", "incident_verdicts", ["verdict"], unique=False)
    op.create_table(
        "notes",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("incident", NUMBER, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("author", sa.String(length=300), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("number"),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_notes_incident"), "notes", ["incident"], unique=False)
    op.create_table(
        "notifications",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("incident", NUMBER, nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("receiver", sa.String(length=300), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("sent_at", sa.BigInteger(), nullable=True),
        sa.Column("lease_owner", sa.String(length=80), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("incident", "revision", "receiver"),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_notifications_incident"), "notifications", ["incident"], unique=False)
    op.create_index("notifications_due", "notifications", ["state", "due_at"], unique=False)
    op.create_table(
        "revisions",
        sa.Column("incident", NUMBER, nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("headline", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("incident", "revision"),
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute("CREATE VIRTUAL TABLE incident_text USING fts5(words, detail=none)")
        return
    op.execute(
        "CREATE TABLE incident_text (rowid BIGINT PRIMARY KEY REFERENCES incidents(number) ON DELETE CASCADE, "
        "words TSVECTOR NOT NULL)"
    )
    op.execute("CREATE INDEX incident_text_words ON incident_text USING gin (words)")
