"""The marker that names the guarantee which a test checks, for docs/guarantees.md."""

from __future__ import annotations

import pytest


def guarantee(group: str, text: str) -> pytest.MarkDecorator:
    """Mark a test, a class or, as ``pytestmark``, a module; both arguments are literals, read without import.

    ``group`` is a key of ``tests.guarantees.GROUPS``, ``text`` one sentence for users of the gateway.
    """
    return pytest.mark.guarantee(group, text)
