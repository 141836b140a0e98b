"""Sign in with the organisation's OpenID Connect provider, or with an API token; sign out."""

from __future__ import annotations

import warnings
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from tracecore.server.audit import record
from tracecore.server.csrf import checked_form
from tracecore.server.identity import SESSION_S, of_token
from tracecore.server.pages.templating import render
from tracecore.server.principal import Principal
from tracecore.server.settings import Oidc, ServerSettings

router = APIRouter(include_in_schema=False)
_SCOPE: Final = "openid email profile"


def client(settings: Oidc) -> Any:
    """The provider's client; its addresses are read from the provider when they are first needed."""
    with warnings.catch_warnings():
        # Authlib announces a successor of httpx that it does not need yet.
        warnings.simplefilter("ignore")
        from authlib.integrations.starlette_client import OAuth

    oauth = OAuth()
    return oauth.register(
        "provider",
        client_id=settings.client_id,
        client_secret=settings.client_secret,
        server_metadata_url=f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration",
        client_kwargs={"scope": _SCOPE, "code_challenge_method": "S256", "timeout": 10},
    )


@router.get("/login")
def login(request: Request, next: str = "/") -> Response:
    """The page to sign in on."""
    return _page(request, next)


@router.post("/login")
async def with_token(request: Request) -> Response:
    """Begin a session with an API token."""
    form = await checked_form(request)
    given, after = str(form.get("token", "")).strip(), _local(str(form.get("next", "/")))
    token = await run_in_threadpool(request.app.state.store.tokens.verify, given, request.app.state.clock())
    if token is None:
        return _page(request, after, "This is not a valid token.", 403)
    request.session.clear()
    request.session["who"] = {"token": token.id, "until": _until(request)}
    await run_in_threadpool(record, request, of_token(token), "sign in", token.id)
    return RedirectResponse(after, 303)


@router.get("/login/provider")
async def to_provider(request: Request, next: str = "/") -> Response:
    """Go to the provider."""
    oidc = _provider(request)
    request.session["next"] = _local(next)
    try:
        answer: Response = await oidc.authorize_redirect(request, _callback(request))
    except Exception as error:
        raise HTTPException(503, f"the sign-in provider does not answer ({type(error).__name__})") from None
    return answer


@router.get("/auth/callback")
async def callback(request: Request) -> Response:
    """Come back from the provider."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from authlib.common.errors import AuthlibBaseError

    oidc = _provider(request)
    settings: Oidc = request.app.state.settings.oidc
    try:
        token = await oidc.authorize_access_token(
            request, claims_options={"iss": {"essential": True, "value": settings.issuer.rstrip("/")}}
        )
    except AuthlibBaseError as error:
        return _page(request, "/", f"The provider refused: {error.error or type(error).__name__}", 403)
    except Exception as error:
        return _page(request, "/", f"The provider's answer cannot be used ({type(error).__name__}).", 403)
    claims = token.get("userinfo")
    if not claims:
        return _page(request, "/", "The provider did not say who you are.", 403)
    who = principal_of(settings, dict(claims))
    after = _local(str(request.session.get("next", "/")))
    request.session.clear()
    request.session["who"] = {
        "name": who.name, "scopes": sorted(who.scopes), "tenant": who.tenant, "until": _until(request)
    }  # fmt: skip
    await run_in_threadpool(record, request, who, "sign in", who.name)
    return RedirectResponse(after, 303)


@router.post("/logout")
async def logout(request: Request) -> Response:
    """End the session."""
    await checked_form(request)
    request.session.clear()
    return RedirectResponse("/login", 303)


def principal_of(settings: Oidc, claims: dict[str, Any]) -> Principal:
    """Return the person whom the provider names, and what they may do."""
    email = claims.get("email") if claims.get("email_verified", True) is True else None
    name = str(email or claims.get("preferred_username") or claims.get("sub") or "")
    groups = claims.get(settings.groups_claim)
    # Only what the provider vouches for gives rights: a name that a user can choose does not.
    own = {str(group) for group in groups} if isinstance(groups, list) else set()
    own |= {str(email)} if email else set()
    scopes = {"read"}
    if own & settings.operators:
        scopes.add("operate")
    if own & settings.admins:
        scopes.add("admin")
    tenant = claims.get(settings.tenant_claim) if settings.tenant_claim else None
    if settings.tenant_claim and not isinstance(tenant, str):
        # A user without a tenant sees no tenant's incidents.
        tenant = "-"
    return Principal(name=name[:300], scopes=frozenset(scopes), tenant=tenant, how="session")


def _provider(request: Request) -> Any:
    found = getattr(request.app.state, "oidc", None)
    if found is None:
        raise HTTPException(404, "no sign-in provider is configured")
    return found


def _callback(request: Request) -> str:
    settings: ServerSettings = request.app.state.settings
    base = settings.base_url.rstrip("/") if settings.base_url else str(request.base_url).rstrip("/")
    return f"{base}/auth/callback"


def _until(request: Request) -> int:
    now: int = request.app.state.clock()
    return now // 10**9 + SESSION_S


def _local(address: str) -> str:
    """An address on this server; anything else would let a link send people elsewhere."""
    plain = address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()
    return address if plain and "\\" not in address else "/"


def _page(request: Request, after: str, said: str = "", status: int = 200) -> Response:
    after = _local(after)
    settings: ServerSettings = request.app.state.settings
    provider = f"/login/provider?{urlencode({'next': after})}" if settings.oidc is not None else ""
    return render(request, "login.html", status, after=after, error=said, provider=provider)
