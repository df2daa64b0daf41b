"""Errors as ``application/problem+json`` documents, with a type, a title and advice."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException

from windlass.core.text import clean_text, printable
from windlass.dashboard.shapes.session import Problem
from windlass.errors import (
    ClosedError,
    ConfigError,
    GroupFullError,
    HistoryTrimmedError,
    IllegalTransitionError,
    JobNotFoundError,
    LeaseLostError,
    PayloadTooLargeError,
    ScheduleNotFoundError,
    StorageError,
    UnsupportedByBackendError,
    WindlassError,
)

log = logging.getLogger("windlass.dashboard")

MEDIA_TYPE = "application/problem+json"
#: Maximum length of a path in the log.
_LOGGED = 300


class ApiError(Exception):
    """A refused request, with everything that the response contains."""

    def __init__(
        self, status: int, code: str, detail: str, advice: str = "", headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.advice = advice
        self.headers = headers or {}


def not_found(what: str, advice: str = "") -> ApiError:
    """The 404 error."""
    return ApiError(404, "not_found", what, advice)


def problem(status: int, code: str, detail: str, advice: str = "", path: str = "") -> Problem:
    """A problem document."""
    return Problem(
        type=f"urn:windlass:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        advice=advice,
        instance=path,
    )


def encode(document: Problem) -> bytes:
    return msgspec.json.encode(document)


#: Most specific class first.
_OURS: tuple[tuple[type[WindlassError], int, str], ...] = (
    (PayloadTooLargeError, 413, "Store large data elsewhere and pass a reference to it."),
    (ConfigError, 422, "Correct the named value; nothing was changed."),
    (UnsupportedByBackendError, 501, "Use a store that declares it; the session lists the capabilities."),
    (HistoryTrimmedError, 410, "Continue from the oldest record that is kept."),
    (StorageError, 503, "The store did not answer: try again; every request may be repeated."),
    (ClosedError, 503, "The server is stopping: ask the next one."),
    (JobNotFoundError, 404, "It was never added, or pruned, or removed: look at the lists."),
    (ScheduleNotFoundError, 404, "It was never made, or removed: look at the list of schedules."),
    (IllegalTransitionError, 409, "Read the job again: its state does not allow this."),
    (LeaseLostError, 409, "Read the job again: another attempt holds it."),
    (GroupFullError, 409, "Add them when some of the group's jobs have finished, or raise its max_size."),
    (WindlassError, 422, ""),
)


def of_error(error: WindlassError) -> tuple[int, str, str, str]:
    """Status, code, detail and advice of one of our errors."""
    for kind, status, advice in _OURS:
        if isinstance(error, kind):
            return status, error.code, str(error), advice
    raise error


def on_ours(request: Request[Any, Any, Any], error: WindlassError) -> Response[bytes]:
    """The response for one of our errors."""
    status, code, detail, advice = of_error(error)
    if status == 503:
        log.warning("the store did not answer: %s", printable(str(error)))
    return _answer(problem(status, code, detail, advice, request.url.path))


def on_refusal(request: Request[Any, Any, Any], error: ApiError) -> Response[bytes]:
    """The response for a refused request."""
    return _answer(
        problem(error.status, error.code, error.detail, error.advice, request.url.path), error.headers
    )


def on_http(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """The response for errors of the framework: unknown paths, wrong methods, invalid parameters."""
    status = error.status_code
    code = "_".join(HTTPStatus(status).phrase.lower().split())
    document = problem(status, code, error.detail, _ADVICE.get(status, ""), request.url.path)
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        document.errors = [
            {key: str(value) for key, value in entry.items()}
            for entry in error.extra
            if isinstance(entry, dict)
        ]
    return _answer(document, dict(error.headers or {}))


_ADVICE = {
    400: "Compare the request with /api/openapi.json.",
    404: "The paths are in /api/openapi.json.",
    405: "The methods of each path are in /api/openapi.json.",
    413: "Send less at once.",
}


def on_unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The response to an internal error: details go to the log, not to the client."""
    where = printable(clean_text(request.url.path, _LOGGED))
    log.exception("a request failed: %s %s", request.method, where, exc_info=error)
    advice = "This is a defect of the server: its log has the details."
    document = problem(500, "unexpected", "The server could not answer.", advice, request.url.path)
    return _answer(document)


def _answer(document: Problem, headers: dict[str, str] | None = None) -> Response[bytes]:
    return Response(
        encode(document), status_code=document.status, media_type=MEDIA_TYPE, headers=headers or {}
    )
