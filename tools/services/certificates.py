"""Certificates for tests, made by ``openssl``: our own authority, and server certificates that it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


class Authority:
    """Signs certificates in ``folder``. Clients that trust ``ca`` accept them."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = folder / f"{name}.key"
        self.ca = folder / f"{name}.pem"
        _openssl(
            *("req", "-x509", *_KEY, "-keyout", str(self._key), "-out", str(self.ca), "-subj", f"/CN={name}"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def sign(self, name: str, *names: str) -> tuple[Path, Path]:
        """Certificate and key of a server with ``names`` (like ``DNS:localhost`` or ``IP:127.0.0.1``)."""
        request, key, certificate = (self._folder / f"{name}.{end}" for end in ("csr", "key", "crt"))
        extra = self._folder / f"{name}.ext"
        extra.write_text(f"subjectAltName={','.join(names)}\nauthorityKeyIdentifier=keyid\n")
        _openssl("req", *_KEY, "-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}")
        _openssl(
            *(
                "x509",
                "-req",
                "-in",
                str(request),
                "-CA",
                str(self.ca),
                "-CAkey",
                str(self._key),
                "-days",
                "2",
            ),
            *("-CAcreateserial", "-extfile", str(extra), "-out", str(certificate)),
        )
        return certificate, key


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, stdin=subprocess.DEVNULL)
