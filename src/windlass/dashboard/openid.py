"""OpenID Connect: the authorisation-code flow with PKCE, state and nonce. Authlib implements the protocol."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable

import httpx
import msgspec
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from windlass.core.text import printable
from windlass.dashboard.problems import ApiError
from windlass.dashboard.signin import OpenID
from windlass.dashboard.users import Identity

log = logging.getLogger("windlass.dashboard")

#: How long a user may take at the provider, and how long its keys are cached.
ATTEMPT_MS = 600_000
_METADATA_MS = 3_600_000
_TIMEOUT_S = 10.0
_LEEWAY_S = 60
#: Only signatures with a public key; one with a shared secret would prove nothing here.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


class _Attempt(msgspec.Struct, array_like=True):
    """The state of one sign-in attempt, kept in a cookie that we sign."""

    state: str
    nonce: str
    verifier: str
    until_ms: int


class _Metadata(msgspec.Struct):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


class Provider:
    """The provider of one dashboard."""

    def __init__(self, settings: OpenID, now_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._now_ms = now_ms
        self._key = secrets.token_bytes(32)
        self._metadata: tuple[int, _Metadata] | None = None
        self._keys: tuple[int, KeySet] | None = None

    async def begin(self) -> tuple[str, str]:
        """The URL for the browser, and the cookie that it must return."""
        metadata = await self._discover()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        attempt = _Attempt(state, nonce, verifier, self._now_ms() + ATTEMPT_MS)
        async with self._client(state=attempt.state) as client:
            url, _ = client.create_authorization_url(
                metadata.authorization_endpoint,
                state=attempt.state,
                nonce=attempt.nonce,
                code_verifier=attempt.verifier,
            )
        return url, self._seal(attempt)

    async def finish(self, cookie: str, state: str, code: str) -> Identity:
        """The user who returned from the provider. Raises 401 if the browser or the proof is not valid."""
        attempt = self._unseal(cookie)
        if attempt is None or not hmac.compare_digest(attempt.state.encode(), state.encode()) or not code:
            raise _refused("the sign-in was not begun here, or too long ago")
        try:
            claims = await self._claims(attempt, code)
        except (AuthlibBaseError, JoseError, httpx.HTTPError, ValueError, KeyError) as exc:
            log.warning("a sign-in failed: %s", printable(f"{type(exc).__name__}: {exc}"))
            raise _refused("the provider's answer does not prove who you are") from None
        found = self._identity(claims)
        if found is None:
            raise ApiError(403, "no_role", "you have no role here", "Ask to be added to one of its groups.")
        return found

    async def _claims(self, attempt: _Attempt, code: str) -> CodeIDToken:
        metadata = await self._discover()
        async with self._client(state=attempt.state) as client:
            token = await client.fetch_token(
                metadata.token_endpoint,
                code=code,
                code_verifier=attempt.verifier,
                grant_type="authorization_code",
            )
        signed = await self._verify(str(token["id_token"]))
        options = {
            "iss": {"essential": True, "value": metadata.issuer},
            "aud": {"essential": True, "value": self._settings.client_id},
        }
        params = {
            "nonce": attempt.nonce,
            "client_id": self._settings.client_id,
            "access_token": token.get("access_token"),
        }
        claims = CodeIDToken(signed.claims, signed.header, options, params)
        claims.validate(now=self._now_ms() // 1000, leeway=_LEEWAY_S)
        return claims

    async def _verify(self, id_token: str) -> jwt.Token:
        """The verified claims. If the provider's keys changed, they are fetched again, once."""
        try:
            return jwt.decode(id_token, await self._key_set(False), algorithms=_ALGORITHMS)
        except (JoseError, ValueError):
            return jwt.decode(id_token, await self._key_set(True), algorithms=_ALGORITHMS)

    def _identity(self, claims: CodeIDToken) -> Identity | None:
        settings = self._settings
        name, groups = claims.get(settings.user_claim), claims.get(settings.groups_claim)
        # Some providers send the text "true". Any other text, including "false", is no proof.
        verified = claims.get("email_verified") in (True, "true")
        if not isinstance(name, str) or (settings.user_claim == "email" and not verified):
            return None
        named = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
        return settings.roles.identity(name, [group for group in named if isinstance(group, str)])

    def _client(self, state: str) -> AsyncOAuth2Client:
        settings = self._settings
        return AsyncOAuth2Client(
            client_id=settings.client_id,
            client_secret=settings.client_secret,
            scope=" ".join(settings.scopes),
            redirect_uri=settings.redirect_uri,
            code_challenge_method="S256",
            state=state,
            timeout=_TIMEOUT_S,
        )

    # --- metadata of the provider ----------------------------------------------------------------------

    async def _discover(self) -> _Metadata:
        if self._metadata is None or self._now_ms() - self._metadata[0] > _METADATA_MS:
            issuer = self._settings.issuer
            text = await _fetch(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            try:
                found = msgspec.json.decode(text, type=_Metadata)
            except msgspec.MsgspecError:
                raise _unreachable() from None
            if found.issuer != issuer:
                raise _unreachable()
            self._metadata = (self._now_ms(), found)
        return self._metadata[1]

    async def _key_set(self, fresh: bool) -> KeySet:
        if fresh or self._keys is None or self._now_ms() - self._keys[0] > _METADATA_MS:
            text = await _fetch((await self._discover()).jwks_uri)
            self._keys = (self._now_ms(), KeySet.import_key_set(msgspec.json.decode(text)))
        return self._keys[1]

    # --- the cookie of an attempt --------------------------------------------------------------------

    def _seal(self, attempt: _Attempt) -> str:
        body = urlsafe_b64encode(msgspec.json.encode(attempt)).decode().rstrip("=")
        return f"{body}.{self._sign(body)}"

    def _unseal(self, cookie: str) -> _Attempt | None:
        body, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(body).encode()):
            return None
        attempt = msgspec.json.decode(urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=_Attempt)
        return attempt if attempt.until_ms > self._now_ms() else None

    def _sign(self, body: str) -> str:
        return hmac.new(self._key, body.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


async def _fetch(url: str) -> bytes:
    try:
        async with httpx.AsyncClient(timeout=_TIMEOUT_S) as client:
            answer = (await client.get(url)).raise_for_status()
    except httpx.HTTPError as exc:
        log.warning("the sign-in provider does not answer: %s", printable(f"{type(exc).__name__}: {exc}"))
        raise _unreachable() from None
    return answer.content


def _refused(why: str) -> ApiError:
    return ApiError(401, "unauthenticated", why, "Sign in again.")


def _unreachable() -> ApiError:
    return ApiError(503, "no_provider", "the sign-in provider gave no valid answer", "Try again later.")
