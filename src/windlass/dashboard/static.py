"""The built pages. All files are read into memory, so that a request can only name one of them."""

from __future__ import annotations

import hashlib
import html
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
_BASE = '<base href="/">'
NOT_BUILT = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>Windlass</title>"
    "<h1>The pages were not built</h1><p>Run <code>scripts/build-ui</code>. The API works: see "
    "<code>api/openapi.json</code>.</p></html>"
)


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    data: bytes
    media_type: str
    etag: str


class Static:
    """The files in a folder by relative path. They are read again after a new build."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._files: dict[str, Asset] = {}
        self._built_ns = -1

    def asset(self, name: str) -> Asset | None:
        """The file with exactly this path below the folder; None if there is none."""
        self._load()
        return self._files.get(name)

    def page(self, base: str) -> bytes | None:
        """The HTML page, for the path ``base`` under which the API is mounted; None if it was not built."""
        index = self.asset("index.html")
        if index is None:
            return None
        return index.data.replace(_BASE.encode(), f'<base href="{html.escape(base)}/">'.encode(), 1)

    def _load(self) -> None:
        try:
            built_ns = (self._folder / "index.html").stat().st_mtime_ns
        except OSError:
            built_ns = 0
        if built_ns == self._built_ns:
            return
        self._built_ns = built_ns
        self._files = {}
        for path in sorted(self._folder.rglob("*")) if built_ns else []:
            kind = _TYPES.get(path.suffix)
            if kind is not None and path.is_file():
                data = path.read_bytes()
                name = path.relative_to(self._folder).as_posix()
                self._files[name] = Asset(data, kind, f'"{hashlib.sha256(data).hexdigest()[:16]}"')
