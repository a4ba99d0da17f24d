"""Certificates for tests, made by openssl: an authority, a server's, a client's."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """A certificate authority with its files in a folder of its own."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate, self._key = folder / "ca.pem", folder / "ca.key"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "2", "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.certificate),
        )

    def issue(self, name: str, *, alternative: str = "", days: int = 2) -> tuple[Path, Path]:
        """Sign a certificate; return it and its key. ``alternative`` is as ``IP:127.0.0.1``."""
        cert, key, request = (self._folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", key, "-out", request),
        )
        extension = self._folder / f"{name}.ext"
        extension.write_text(
            f"subjectAltName={alternative}\n" if alternative else "basicConstraints=CA:FALSE\n"
        )
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key),
            *("-CAcreateserial", "-days", str(days), "-extfile", extension, "-out", cert),
        )
        return cert, key


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)
