"""Tells a server's error from what a model wrote; pure."""

from __future__ import annotations

import json
import re

_PAGE = re.compile(r"\s*(?:```\w*\s*)?(?:<!doctype\s+html|<html\b|<\?xml\b)", re.IGNORECASE)
_OF_ERRORS = {"error", "message", "type", "code", "status", "detail"}


def is_error_page(text: str) -> bool:
    """Say whether a server's error came through as if the model had said it."""
    low = text.lower()
    if _PAGE.match(text) or ("<html" in low and "</html>" in low):
        return True
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(body, dict) and "error" in body and set(body) <= _OF_ERRORS
