"""Groups of incidents that are told together."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "notification_groups",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=80), nullable=False),
        sa.Column("receiver", sa.String(length=300), nullable=False),
        sa.Column("way", sa.String(length=40), nullable=False),
        sa.Column("route", sa.String(length=80), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("active", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("next_at", sa.BigInteger(), nullable=True),
        sa.Column("sent_at", sa.BigInteger(), nullable=True),
        sa.Column("noticed_at", sa.BigInteger(), nullable=True),
        sa.Column("deliveries", sa.Integer(), nullable=False),
        sa.Column("sending", sa.String(length=120), nullable=False),
        sa.Column("outgoing", sa.Text(), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sqlite_autoincrement=True,
    )
    op.create_index("notification_groups_due", "notification_groups", ["active", "next_at"], unique=False)
    op.create_index("notification_groups_by_name", "notification_groups", ["active", "receiver", "way"], unique=False)
    op.create_table(
        "notification_members",
        sa.Column("notification_group", NUMBER, nullable=False),
        sa.Column("incident", NUMBER, nullable=False),
        sa.Column("joined_at", sa.BigInteger(), nullable=False),
        sa.Column("told", sa.String(length=16), nullable=False),
        sa.Column("told_digest", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["notification_group"], ["notification_groups.number"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["incident"], ["incidents.number"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("notification_group", "incident"),
    )
    op.create_index("notification_members_by_incident", "notification_members", ["incident"], unique=False)
