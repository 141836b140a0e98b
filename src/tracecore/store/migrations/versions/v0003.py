"""Time and tenant of an incident beside its suspects, so that sums by node need not read the incidents."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("incident_entities", sa.Column("first_seen", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("incident_entities", sa.Column("tenant", sa.String(80), nullable=False, server_default=""))
    op.execute(
        "UPDATE incident_entities SET "
        "first_seen = (SELECT first_seen FROM incidents WHERE incidents.number = incident_entities.incident), "
        "tenant = (SELECT tenant FROM incidents WHERE incidents.number = incident_entities.incident)"
    )
    op.drop_index("entities_by_name", "incident_entities")
    op.create_index("entities_by_name", "incident_entities", ["kind", "name", "first_seen", "incident"])
    op.create_index("entities_by_time", "incident_entities", ["kind", "first_seen", "name", "tenant"])
    op.create_index("incidents_fingerprints", "incidents", ["first_seen", "fingerprint", "tenant", "number"])
