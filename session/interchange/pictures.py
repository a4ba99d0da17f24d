"""Images that stand in a session file as base64: taken out, named by their content as media are."""

from __future__ import annotations

import base64
import binascii
import hashlib
import mimetypes
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from session.interchange.conversation import Losses

_EXTENSIONS: Final = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
}


class Pictures:
    """Collects the images of one session; ``files`` is their content by its path in a workspace."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self.files: dict[str, bytes] = {}

    def take(self, blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return images as the attachments of a line; one that cannot be read is counted as lost."""
        found = []
        for block in blocks:
            mime, data = str(block.get("mimeType", "")), _bytes(block.get("data"))
            if not data or mime not in _EXTENSIONS:
                self._losses.add("images that are not base64 of PNG, JPEG, GIF or WebP")
                continue
            found.append(self._kept(data, "photo", f"photo{_EXTENSIONS[mime]}", mime))
        return found

    def keep(self, path: str, data: bytes) -> dict[str, Any]:
        """Return a file that a message names by its path as an attachment."""
        name = path.replace("\\", "/").rpartition("/")[2]
        mime = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return self._kept(data, "photo" if mime in _EXTENSIONS else "file", name, mime)

    def _kept(self, data: bytes, kind: str, name: str, mime: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        suffix = re.search(r"\.[A-Za-z0-9]{1,8}$", name)
        ref = f"media/{digest[:2]}/{digest}{suffix.group().lower() if suffix else ''}"
        self.files[ref] = data
        return {"kind": kind, "name": name, "mime": mime, "size": len(data), "ref": ref}


def _bytes(text: object) -> bytes:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return b""
