"""When a node was heard of last, so that one that stops sending becomes silent."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("heard_at", sa.BigInteger()))
