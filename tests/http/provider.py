"""A small OpenID Connect provider for tests, on a port of this machine: every user signs in at once."""

from __future__ import annotations

import hashlib
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Route

CLIENT = "windlass-tests"
CLIENT_SECRET = "the secret of the client"


@dataclass
class FakeProvider:
    """Its behaviour can be changed, to be wrong on purpose."""

    issuer: str = ""
    claims: dict[str, Any] = field(default_factory=dict)
    key: Any = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "one"}))
    signing_key: Any = None
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    async def metadata(self, request: Request) -> JSONResponse:
        return JSONResponse(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
            }
        )

    async def keys(self, request: Request) -> JSONResponse:
        return JSONResponse(KeySet([self.key]).as_dict(private=False))

    async def authorize(self, request: Request) -> RedirectResponse:
        asked = dict(request.query_params)
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        return RedirectResponse(
            f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"
        )

    async def token(self, request: Request) -> JSONResponse:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        asked = self.codes.pop(form["code"], None)
        challenge = hashlib.sha256(form["code_verifier"].encode()).digest()
        if asked is None or asked["code_challenge"] != urlsafe_b64encode(challenge).decode().rstrip("="):
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "sub": "ada",
            "iat": now,
            "exp": now + 60,
            "nonce": asked["nonce"],
            **self.claims,
        }
        signed = jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.signing_key or self.key)
        return JSONResponse({"access_token": "x", "token_type": "Bearer", "id_token": signed})


@asynccontextmanager
async def provider() -> AsyncIterator[FakeProvider]:
    """One that runs."""
    import asyncio

    fake = FakeProvider()
    app = Starlette(
        routes=[
            Route("/.well-known/openid-configuration", fake.metadata),
            Route("/keys", fake.keys),
            Route("/authorize", fake.authorize),
            Route("/token", fake.token, methods=["POST"]),
        ]
    )
    up = asyncio.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            up.set()

    server = Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    task = asyncio.create_task(server.serve())
    await up.wait()
    fake.issuer = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield fake
    finally:
        server.should_exit = True
        await task
