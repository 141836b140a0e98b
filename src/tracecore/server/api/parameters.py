"""Parameters that several routes take, with their bounds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import Path, Query
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from tracecore.store.incidents import MOST

#: No database takes a null character in text.
TEXT: Final = r"^[^\u0000]*$"

Name = Annotated[str | None, Query(min_length=1, max_length=300, pattern=TEXT)]
Id = Annotated[str, Path(min_length=1, max_length=80, pattern=TEXT)]
PathName = Annotated[str, Path(min_length=1, max_length=300, pattern=TEXT)]
Limit = Annotated[int, Query(ge=1, le=MOST, description="How many at most.")]
Cursor = Annotated[str | None, Query(max_length=2_000, description="`next` of the page before.")]
Moment = Annotated[AwareDatetime | None, Query()]


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 3.0 is the integer 3."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


#: After the bounds of an integer in the body of a request.
WHOLE: Final = BeforeValidator(_whole)
#: Text in the body of a request.
BodyText = Annotated[str, Field(max_length=4_000, pattern=TEXT)]


class Body(BaseModel):
    """A request's body: unknown fields are an error, so that a typing mistake is seen."""

    model_config = ConfigDict(extra="forbid", strict=True)


def nanoseconds(moment: datetime | None) -> int | None:
    """Nanoseconds since the epoch, within what a database holds."""
    if moment is None:
        return None
    since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC) if moment.year not in (1, 9999) else None
    if since is None:
        return 0 if moment.year == 1 else (1 << 63) - 1
    found = (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000
    return max(0, min(found, (1 << 63) - 1))
