"""Errors of the server and of the client library as ``StorageError``, with advice."""

from __future__ import annotations

import ssl

import redis.exceptions as theirs

from windlass.backend.calls import UNKNOWN
from windlass.errors import StorageError, StoreFullError

#: The server refused before it did anything: it is safe to try again, perhaps on another server.
_RETRY_LATER = (
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOREPLICAS",
    "BUSY ",
    "UNKILLABLE",
)

_ADVICE = {
    "NOAUTH": "the server wants a password: put user:password@ into the URL",
    "WRONGPASS": "the user name or password in the URL is wrong",
    "NOPERM": "the user in the URL may not do this: give it the keys ~windlass:*, the channels &windlass:* "
    "and the commands +@all -@admin -@dangerous",
    "OOM": "the server is out of memory and takes no new jobs; those it has run, end and can be removed. Let "
    "workers continue, remove finished jobs (windlass clean), keep fewer of them, or raise maxmemory; "
    "maxmemory-policy must be noeviction",
    "MISCONF": "the server cannot write to its disk: see its log",
    "CROSSSLOT": "the server is part of a cluster: use a URL that begins with valkey+cluster://",
    "unknown command": "the server is too old: Valkey 7.2 or Redis 7.0 is needed",
    "DB index": "the server has no such database: see the number at the end of the URL",
}


#: Error classes whose message has lost the first word of the reply.
_WORDS = {
    theirs.NoPermissionError: "NOPERM",
    theirs.OutOfMemoryError: "OOM",
    theirs.ClusterCrossSlotError: "CROSSSLOT",
    theirs.AskError: "CROSSSLOT",
}


class NotSentError(Exception):
    """The request did not reach a server, so nothing happened. ``cause`` is the reason."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause
        super().__init__(str(cause))


class TlsError(Exception):
    """The TLS handshake failed. Trying again does not help."""


def tls_problem(error: BaseException) -> TlsError | None:
    """The TLS failure among the causes of ``error``, if there is one."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, ssl.SSLError):
        seen = seen.__cause__ or seen.__context__
    if seen is None or isinstance(seen, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return None
    return TlsError(getattr(seen, "verify_message", "") or seen.reason or str(seen))


def is_function_missing(error: BaseException) -> bool:
    """Whether the server does not have our library."""
    return isinstance(error, theirs.ResponseError) and "Function not found" in str(error)


def is_wrong_type(error: BaseException) -> bool:
    """Whether a key has the wrong type."""
    return isinstance(error, theirs.ResponseError) and "WRONGTYPE" in str(error)


def is_refused_for_now(error: BaseException) -> bool:
    """Whether the server refused without doing anything, so that the request can be repeated."""
    if isinstance(error, NotSentError):
        return True
    if isinstance(error, (theirs.BusyLoadingError, theirs.ReadOnlyError, theirs.MovedError, theirs.AskError)):
        return True
    if isinstance(error, (theirs.ClusterDownError, theirs.TryAgainError, theirs.MasterDownError)):
        return True
    return isinstance(error, theirs.ResponseError) and str(error).startswith(_RETRY_LATER)


def storage_error(error: BaseException, where: str) -> StorageError:
    """``error`` as the ``StorageError`` to raise; ``where`` names the server."""
    said = str(error.cause if isinstance(error, NotSentError) else error) or type(error).__name__
    if isinstance(error, NotSentError):
        return StorageError(f"no answer from {where}: {said}; is the server running and the URL right?")
    if isinstance(error, TlsError):
        return StorageError(
            f"no TLS with {where}: {said}; name the authority that signed its certificate with ?ca=, your "
            "own certificate with ?cert= and ?key=, or use valkey:// if it speaks no TLS"
        )
    if isinstance(error, theirs.AuthenticationError):
        return StorageError(
            f"{where} refused: {said}; fix user:password@ in the URL (or sentinel_password=, for a sentinel)"
        )
    if isinstance(error, TimeoutError):
        return StorageError(f"{where} did not answer in time: {UNKNOWN}. If it is only slow, raise ?timeout=")
    if isinstance(error, (theirs.ConnectionError, OSError)):
        return StorageError(f"lost the connection to {where}: {said}; {UNKNOWN}")
    for kind, word in _WORDS.items():
        if isinstance(error, kind):
            return _refusal(word, f"{where} refused: {said}; {_ADVICE[word]}")
    for start, advice in _ADVICE.items():
        if said.startswith(start) or start in said.split(":", 1)[0]:
            return _refusal(start, f"{where} refused: {said}; {advice}")
    return StorageError(f"{where} refused: {said}")


def _refusal(word: str, text: str) -> StorageError:
    return StoreFullError(text) if word == "OOM" else StorageError(text)
