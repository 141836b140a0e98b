"""A row for every message: a reminder and a resolution no longer take the place of the first one."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
KEPT = ("number", "incident", "revision", "receiver", "state", "tries", "due_at", "created_at", "sent_at", "error")


def upgrade() -> None:
    op.drop_index("notifications_due", "notifications")
    op.drop_index("ix_notifications_incident", "notifications")
    op.rename_table("notifications", "notifications_before")
    made = op.create_table(
        "notifications",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("incident", NUMBER, nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("receiver", sa.String(length=300), nullable=False),
        sa.Column("delivery", sa.String(length=120), nullable=False),
        sa.Column("reason", sa.String(length=16), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("sent_at", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("incident", "receiver", "delivery"),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_notifications_incident"), "notifications", ["incident"], unique=False)
    connection = op.get_bind()
    for row in connection.execute(sa.text("SELECT * FROM notifications_before")).mappings().all():
        said = json.loads(row["payload"])
        own = {name: row[name] for name in KEPT}
        told = {"reason": said.get("reason", ""), "title": said.get("title", "")}
        connection.execute(made.insert(), own | told | {"delivery": f"revision-{row['revision']}"})
    op.drop_table("notifications_before")
    if connection.dialect.name != "sqlite":
        # Rows were copied with their numbers: the next one is greater.
        op.execute(
            "SELECT setval(pg_get_serial_sequence('notifications', 'number'), "
            "(SELECT COALESCE(MAX(number), 0) + 1 FROM notifications), false)"
        )
