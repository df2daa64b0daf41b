"""Decodes request bodies strictly: a text is not a number, and 0 is not false."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request
from litestar.exceptions import ValidationException
from litestar.handlers import HTTPRouteHandler


class StrictRequest(Request[Any, Any, Any]):
    """A request whose body is decoded once, strictly, to the type that its route takes."""

    async def json(self) -> Any:
        """The body as the type of the route's ``data``. Raises 400 if it does not match."""
        handler = self.scope["route_handler"]
        field = handler.parsed_data_field if isinstance(handler, HTTPRouteHandler) else None
        try:
            return msgspec.json.decode(await self.body(), type=Any if field is None else field.annotation)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            errors = [{"message": str(exc), "key": "data", "source": "body"}]
            raise ValidationException("the body does not fit", extra=errors) from None
