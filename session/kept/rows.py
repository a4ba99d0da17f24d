"""Rows of one subject in what models cost: exported, and made nobody's."""

from __future__ import annotations

import orjson

from session.kept.export import Extra
from session.kept.subject import Subject
from session.models import usage_rows
from session.store.state import StoreState


async def usage_of(state: StoreState, subject: Subject) -> list[Extra]:
    """Return the part of an export that has the subject's rows, oldest first; none where there are none."""
    rows = await usage_rows.of_subject(state, subject.keys, subject.payers)
    lines = b"".join(orjson.dumps(row.as_dict()) + b"\n" for row in rows)
    return [Extra("usage", "rows/usage.jsonl", lines, "state/gateway.db")] if lines else []


async def forget_usage(state: StoreState, subject: Subject) -> int:
    """Take key, person and job out of the subject's rows; what they cost still counts for their day.

    Returns:
        How many rows were changed.

    Raises:
        StoreError: the disk refused; call it again.
    """
    return await usage_rows.forget(state, subject.keys, subject.payers)
