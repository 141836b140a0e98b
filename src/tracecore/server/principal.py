"""The sender of a request, and what they may do."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from fastapi import Depends, HTTPException, Request

from tracecore.store.tokens import SCOPES

#: What somebody with this scope may also do.
IMPLIES: Final = {"admin": frozenset(SCOPES), "operate": frozenset({"operate", "read"})}


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The sender of a request.

    Args:
        name: for notes and the audit log.
        scopes: of `read`, `ingest`, `operate`, `admin`.
        tenant: sees only this tenant's incidents and jobs; None for all.
        how: `none` (no authentication), `token` or `session`.
    """

    name: str
    scopes: frozenset[str]
    tenant: str | None = None
    how: str = "none"

    def may(self, scope: str) -> bool:
        return scope in self.scopes or any(scope in IMPLIES.get(own, ()) for own in self.scopes)


UNKNOWN_TOKEN: Final = "this token is not known, has expired or was revoked"
#: Everybody, where the server asks nobody who they are.
LOCAL: Final = Principal(name="local", scopes=frozenset(SCOPES))


def principal(request: Request) -> Principal:
    """Return the sender of the request; raise an error if the sender is unknown."""
    found: Principal | None = getattr(request.state, "principal", None)
    if found is None:
        unknown = getattr(request.state, "unknown_token", False)
        said = UNKNOWN_TOKEN if unknown else "sign in, or send an API token"
        raise HTTPException(401, said, headers={"WWW-Authenticate": "Bearer"})
    return found


def require(scope: str) -> Any:
    """A dependency that gives who asks, where they have the scope."""

    def check(request: Request) -> Principal:
        found = principal(request)
        if not found.may(scope):
            raise HTTPException(403, f"this needs the scope {scope}")
        return found

    return Depends(check)
