"""Authentication of clients and servers: `auth:` of a component names an extension that does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Protocol, TypeAlias

import msgspec

#: The id of an extension that authenticates.
AuthId: TypeAlias = Annotated[str, msgspec.Meta(extra={"extension": "auth"})]


class Auth(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        authenticator: the extension that knows: `basicauth` or `bearertokenauth`.
    """

    IGNORED: ClassVar[tuple[str, ...]] = ("request_params",)

    authenticator: AuthId


class Authenticator(Protocol):
    """Interface of an authentication extension."""

    def headers(self) -> dict[str, str]:
        """The headers of a client's request.

        Raises:
            OSError: a file with a secret cannot be read.
        """

    def allows(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request with these headers, whose names are in lower case, may come in."""


#: What a client is told that may not.
CHALLENGE = "who you are is not known here: send the Authorization header that this server was configured with"
