"""Since when a message is due, and why an incident is not told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("notification_groups", sa.Column("due_at", sa.BigInteger()))
    op.add_column("notification_members", sa.Column("suppressed", sa.Text()))
