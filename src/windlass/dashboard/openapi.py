"""The OpenAPI 3.1 document: ``python -m windlass.dashboard.openapi > openapi.json``."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig

from windlass._version import __version__
from windlass.dashboard.problems import MEDIA_TYPE
from windlass.dashboard.shapes.server import Tick
from windlass.dashboard.shapes.session import Problem

_PROBLEMS = {
    "400": "Malformed",
    "401": "Not signed in",
    "403": "Not allowed",
    "404": "Not there",
    "405": "No such method here",
    "409": "The state does not allow it",
    "410": "Not kept any more",
    "413": "Too large",
    "414": "The address is too long",
    "422": "A value that cannot work",
    "429": "Too many requests",
    "501": "The store cannot do this",
    "503": "The store does not answer",
}
_METHODS = ("get", "put", "post", "delete", "patch")


_makers: list[Callable[[OpenAPIConfig], Litestar]] = []


def describe_with(make: Callable[[OpenAPIConfig], Litestar]) -> None:
    """Register the function that creates the application. Called once, by the module of the application."""
    _makers[:] = [make]


@cache
def _document() -> dict[str, Any]:
    config = OpenAPIConfig(
        title="Windlass",
        version=__version__,
        use_handler_docstrings=True,
        operation_id_creator=_operation_id,
    )
    app = _makers[0](config)
    found: dict[str, Any] = msgspec.to_builtins(app.openapi_schema.to_schema())
    _tidy(found)
    _add_problems(found)
    _add_security(found)
    # Litestar keeps several paths of a handler as a set, whose order changes from process to process.
    found["paths"] = dict(sorted(found["paths"].items()))
    return found


def _operation_id(handler: HTTPRouteHandler, method: Any, path: list[Any]) -> str:
    """The operation id of a versioned path is the name of its handler: ``search_jobs``."""
    if path[:2] == ["api", "v1"]:
        return handler.handler_name
    return OpenAPIConfig(title="", version="").operation_id_creator(handler, method, path)


def document() -> dict[str, Any]:
    """A copy of the document."""
    return copy.deepcopy(_document())


def _tidy(found: dict[str, Any]) -> None:
    """Remove content from empty responses, make nullable bodies optional, and describe event streams in
    words."""
    for operations in found["paths"].values():
        for operation in operations.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                if {"type": "null"} in content["schema"].get("oneOf", ()):
                    operation["requestBody"]["required"] = False
            for status, response in operation["responses"].items():
                if status == "204":
                    response.pop("content", None)
                if "text/event-stream" in response.get("content", {}):
                    response["content"] = {"text/event-stream": {"schema": {}}}
                if "application/x-ndjson" in response.get("content", {}):
                    response["content"] = {
                        kind: {"schema": {}} for kind in ("application/x-ndjson", "text/csv")
                    }


def _add_problems(found: dict[str, Any]) -> None:
    schemas = found["components"]["schemas"]
    for name, schema in _more_schemas().items():
        schemas.setdefault(name, schema)
    reference = {"$ref": "#/components/schemas/Problem"}
    for operations in found["paths"].values():
        for method in _METHODS:
            if method not in operations:
                continue
            responses = operations[method]["responses"]
            for status, description in _PROBLEMS.items():
                known = responses.get(status)
                if status == "400" or known is None:
                    responses[status] = {
                        "description": description,
                        "content": {MEDIA_TYPE: {"schema": reference}},
                    }
                else:
                    known.setdefault("content", {})[MEDIA_TYPE] = {"schema": reference}


def _more_schemas() -> dict[str, Any]:
    """Schemas that no route references: problems, and the content of live figures."""
    _, components = msgspec.json.schema_components(
        [Problem, Tick], ref_template="#/components/schemas/{name}"
    )
    return components


def _add_security(found: dict[str, Any]) -> None:
    found["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "basic": {"type": "http", "scheme": "basic"},
        "session": {"type": "apiKey", "in": "cookie", "name": "windlass_session"},
    }
    found["security"] = [{}, {"token": []}, {"basic": []}, {"session": []}]
    found["info"]["description"] = (
        "The HTTP API of Windlass. Errors are problem documents (RFC 9457). Requests that change something "
        "carry the header `X-Windlass-CSRF: 1`, or a bearer token. Lists answer the cursor of the next page "
        "in `X-Next-Cursor` and the number of all entries in `X-Total-Count`."
    )


def main() -> None:
    """Print the document."""
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document()), indent=1) + b"\n")


if __name__ == "__main__":
    from windlass.dashboard import openapi

    openapi.main()  # the imported module, where the application registered
