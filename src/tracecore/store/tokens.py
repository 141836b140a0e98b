"""API tokens: `tc_ID_SECRET`. Only an argon2 hash of the secret is kept."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

from sqlalchemy import Row, select, update

from tracecore.store.database import Database
from tracecore.store.records import ApiToken
from tracecore.store.tables import api_tokens
from tracecore.store.update import MAX_NAME, clean

Scope = Literal["read", "ingest", "operate", "admin"]
SCOPES: Final[tuple[str, ...]] = get_args(Scope)
#: Tokens that were found to be right are believed so long without hashing again.
BELIEVED_NS: Final = 60 * 1_000_000_000
_MOST: Final = 1_000
#: How often the time of the last use is written.
USED_NS: Final = 60 * 1_000_000_000


class Tokens:
    """The API tokens of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        #: By digest of a whole token: the token, and until when it is believed.
        self._believed: OrderedDict[bytes, tuple[ApiToken, int]] = OrderedDict()

    def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        who: str,
        now: int,
        expires_at: int | None = None,
        tenant: str = "",
    ) -> tuple[ApiToken, str]:
        """Make a token; its text is given once and is not kept.

        Raises:
            ValueError: a scope is not known.
        """
        from argon2 import PasswordHasher

        if not scopes or not set(scopes) <= set(SCOPES):
            raise ValueError(f"scopes are {', '.join(SCOPES)}")
        ident, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        row = {
            "id": ident, "name": clean(name, MAX_NAME), "hash": PasswordHasher().hash(secret),
            "scopes": " ".join(sorted(set(scopes))), "tenant": clean(tenant, 80), "created_by": clean(who, MAX_NAME),
            "created_at": now, "expires_at": expires_at, "used_at": None, "revoked_at": None,
        }  # fmt: skip
        with self._database.write() as connection:
            connection.execute(api_tokens.insert(), row)
            made = connection.execute(select(api_tokens).where(api_tokens.c.id == ident)).one()
        return _token(made), f"tc_{ident}_{secret}"

    def find(self) -> list[ApiToken]:
        """All tokens, newest first."""
        with self._database.read() as connection:
            query = select(api_tokens).order_by(api_tokens.c.created_at.desc()).limit(_MOST)
            return [_token(row) for row in connection.execute(query)]

    def revoke(self, id: str, now: int) -> bool:
        """End a token; whether there is such a token."""
        with self._database.write() as connection:
            done = connection.execute(
                update(api_tokens)
                .where(api_tokens.c.id == id, api_tokens.c.revoked_at.is_(None))
                .values(revoked_at=now)
            )
            known = connection.execute(select(api_tokens.c.id).where(api_tokens.c.id == id)).first()
        with self._lock:
            self._believed = OrderedDict((key, held) for key, held in self._believed.items() if held[0].id != id)
        return bool(done.rowcount) or known is not None

    def verify(self, given: str, now: int) -> ApiToken | None:
        """The token that this text is; None where it is none, revoked or expired."""
        digest = hashlib.blake2b(given.encode("utf-8", "replace"), digest_size=32).digest()
        with self._lock:
            held = self._believed.get(digest)
        if held is not None and now < held[1] and (held[0].expires_at is None or now < held[0].expires_at):
            return held[0]
        found = self._verified(given, now)
        if found is not None:
            with self._lock:
                self._believed[digest] = (found, now + BELIEVED_NS)
                while len(self._believed) > _MOST:
                    self._believed.popitem(last=False)
        return found

    def live(self, id: str, now: int) -> ApiToken | None:
        """The token of an id that is neither revoked nor expired."""
        with self._database.read() as connection:
            row = connection.execute(select(api_tokens).where(api_tokens.c.id == id)).first()
        if row is None or row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now):
            return None
        return _token(row)

    def _verified(self, given: str, now: int) -> ApiToken | None:
        from argon2 import PasswordHasher
        from argon2.exceptions import Argon2Error, InvalidHashError

        kind, _, rest = given.partition("_")
        ident, _, secret = rest.partition("_")
        if kind != "tc" or not secret or len(given) > 200 or not given.isascii():
            return None
        with self._database.read() as connection:
            row = connection.execute(select(api_tokens).where(api_tokens.c.id == ident)).first()
        if row is None or row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now):
            return None
        try:
            PasswordHasher().verify(row.hash, secret)
        except (Argon2Error, InvalidHashError):
            return None
        if row.used_at is None or row.used_at < now - USED_NS:
            with self._database.write() as connection:
                connection.execute(update(api_tokens).where(api_tokens.c.id == ident).values(used_at=now))
        return _token(row)


def _token(row: Row[Any]) -> ApiToken:
    own = dict(row._mapping)
    del own["hash"]
    return ApiToken(**own | {"scopes": own["scopes"].split()})
