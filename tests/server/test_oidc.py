"""People sign in with an OpenID Connect provider: a small real one, which signs its tokens."""

from __future__ import annotations

import base64
import hashlib
import json
import time
import urllib.parse
import warnings
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from running import running
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tracecore.server.app import make_app
from tracecore.server.login import principal_of
from tracecore.server.settings import Oidc, ServerSettings
from tracecore.store.store import Store

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from authlib.jose import JsonWebKey, jwt


class Provider:
    """Signs in whoever asks as `claims`, and checks what a client sends."""

    def __init__(self) -> None:
        self.address = ""
        self.claims: dict[str, Any] = {
            "sub": "1",
            "email": "ana@example.org",
            "email_verified": True,
            "groups": ["ops"],
        }
        self.key = JsonWebKey.generate_key("RSA", 2048, is_private=True)
        self.wrong_key = JsonWebKey.generate_key("RSA", 2048, is_private=True)
        self.forge = False
        self.nonce: str | None = None
        self.asked: dict[str, str] = {}
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self.configuration),
                Route("/authorize", self.authorize),
                Route("/token", self.token, methods=["POST"]),
                Route("/keys", self.keys),
            ]
        )

    async def configuration(self, request: Request) -> Response:
        own = self.address
        return JSONResponse(
            {
                "issuer": own, "authorization_endpoint": f"{own}/authorize", "token_endpoint": f"{own}/token",
                "jwks_uri": f"{own}/keys", "id_token_signing_alg_values_supported": ["RS256"],
            }
        )  # fmt: skip

    async def authorize(self, request: Request) -> Response:
        self.asked = dict(request.query_params)
        answer = urllib.parse.urlencode({"code": "the-code", "state": self.asked["state"]})
        return RedirectResponse(f"{self.asked['redirect_uri']}?{answer}")

    async def token(self, request: Request) -> Response:
        form = await request.form()
        digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == self.asked["code_challenge"]
        assert form["code"] == "the-code"
        now = int(time.time())
        claims = {
            "iss": self.address, "aud": "tracecore", "iat": now, "exp": now + 60,
            "nonce": self.nonce or self.asked["nonce"], **self.claims,
        }  # fmt: skip
        key = self.wrong_key if self.forge else self.key
        header = {"alg": "RS256", "kid": self.key.thumbprint()}
        token = jwt.encode(header, claims, key).decode()
        return JSONResponse({"access_token": "a", "token_type": "Bearer", "id_token": token, "expires_in": 60})

    async def keys(self, request: Request) -> Response:
        return JSONResponse({"keys": [{**json.loads(self.key.as_json()), "kid": self.key.thumbprint()}]})


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    with running(made.app) as address:
        made.address = address
        yield made


@pytest.fixture
def browser(provider: Provider, sqlite_store: Store) -> Iterator[httpx.Client]:
    oidc = Oidc(
        issuer=provider.address,
        client_id="tracecore",
        client_secret="s3cret",
        operators=frozenset({"ops"}),
        admins=frozenset({"root@example.org"}),
    )
    app = make_app(sqlite_store, ServerSettings(auth=True, oidc=oidc, rate=0))
    with running(app) as address, httpx.Client(base_url=address, timeout=30, follow_redirects=True) as client:
        yield client


@pytest.mark.filterwarnings("ignore")
def test_a_person_signs_in_and_may_operate(browser: httpx.Client, provider: Provider, sqlite_store: Store) -> None:
    assert "/login/provider?next=%2Fincidents" in browser.get("/incidents", headers={"Accept": "text/html"}).text
    assert browser.get("/api/v1/incidents").status_code == 401
    arrived = browser.get("/login/provider", params={"next": "/api/v1/incidents"})
    assert (arrived.status_code, arrived.url.path) == (200, "/api/v1/incidents")
    assert browser.post("/api/v1/incidents/incident-none/resolve").status_code == 404
    assert browser.get("/api/v1/tokens").status_code == 403
    assert sqlite_store.people.audit()[0].who == "ana@example.org"
    assert provider.asked["scope"] == "openid email profile"
    assert provider.asked["code_challenge_method"] == "S256"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("forge", "claims", "nonce"),
    [
        (True, {}, None),
        (False, {"aud": "somebody-else"}, None),
        (False, {"iss": "https://evil.example"}, None),
        (False, {"exp": 1}, None),
        (False, {}, "another"),
    ],
)
def test_forged_foreign_and_old_tokens_are_refused(
    browser: httpx.Client, provider: Provider, forge: bool, claims: dict[str, Any], nonce: str | None
) -> None:
    provider.forge, provider.nonce = forge, nonce
    provider.claims |= claims
    answer = browser.get("/login/provider", params={"next": "/api/v1/incidents"})
    assert answer.status_code == 403, answer.text
    assert browser.get("/api/v1/incidents").status_code == 401


@pytest.mark.filterwarnings("ignore")
def test_an_answer_that_nobody_asked_for_is_refused(browser: httpx.Client) -> None:
    assert browser.get("/auth/callback", params={"code": "x", "state": "y"}).status_code == 403
    assert browser.get("/auth/callback", params={"error": "<script>"}).text.count("<script>") == 0


def test_rights_come_from_what_the_provider_vouches_for() -> None:
    oidc = Oidc(
        issuer="https://id", client_id="a", client_secret="b", operators=frozenset({"ops", "x@y"}), tenant_claim="team"
    )
    assert not principal_of(oidc, {"sub": "1", "preferred_username": "x@y"}).may("operate")
    assert not principal_of(oidc, {"sub": "1", "email": "x@y", "email_verified": False}).may("operate")
    assert principal_of(oidc, {"sub": "1", "email": "x@y", "team": "blue"}).may("operate")
    assert principal_of(oidc, {"sub": "1", "team": "blue"}).tenant == "blue"
    assert principal_of(oidc, {"sub": "1"}).tenant == "-"
