"""Parts of a request that every page needs: the store, the clock, the person who looks, and a checked form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, HTTPException, Request
from starlette.datastructures import FormData
from starlette.responses import RedirectResponse

from tracecore.server.csrf import checked_form
from tracecore.server.principal import Principal, require
from tracecore.store.store import Store

if TYPE_CHECKING:
    from starlette.responses import Response

Reader = Annotated[Principal, require("read")]
Operator = Annotated[Principal, require("operate")]
Admin = Annotated[Principal, require("admin")]


def store_of(request: Request) -> Store:
    store: Store = request.app.state.store
    return store


def clock_of(request: Request) -> int:
    now: int = request.app.state.clock()
    return now


#: The form of one of our pages.
Form = Annotated[FormData, Depends(checked_form)]
#: The store of the application.
Held = Annotated[Store, Depends(store_of)]
#: Nanoseconds since the epoch.
Now = Annotated[int, Depends(clock_of)]


def found(value: object, what: str) -> None:
    """Refuse with "not found" where there is nothing."""
    if value is None:
        raise HTTPException(404, f"no such {what}")


def back(address: str) -> Response:
    """Send the browser to a page after a form, so that a reload does not send the form again."""
    return RedirectResponse(address, 303)
