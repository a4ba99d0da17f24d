"""A heartbeat: a job whose tasks stand in ``HEARTBEAT.md``, read anew at each beat; pure."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final

from channels.cron.job import CronJob

# What a job asks now; None: nothing.
TextOf = Callable[[CronJob], Awaitable[str | None]]
FILE: Final = "HEARTBEAT.md"
# What stands behind it is not asked.
MAX_CHARS: Final = 32_000
NOTHING: Final = "HEARTBEAT.md contains no task"
_COMMENT: Final = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
# A heading, the mark of an item without a text, a rule.
_EMPTY: Final = re.compile(r"(?:#{1,6}(?:\s.*)?|[-*+](?:\s*\[[ xX]?\])?|\d+[.)]|-{3,}|\*{3,}|_{3,})?")


async def message_of(job: CronJob) -> str | None:
    """Return what stands in the file as the job's message: what every job but a heartbeat asks."""
    return job.message


def asks(text: str) -> bool:
    """Say whether there is a task: more than headings, comments and items without a text."""
    return not all(_EMPTY.fullmatch(line.strip()) for line in _COMMENT.sub("", text[:MAX_CHARS]).splitlines())


def beat(message: str, tasks: str) -> str | None:
    """Return what a beat asks: the job's message, below it the tasks. None: there is no task."""
    return f"{message}\n\n{tasks[:MAX_CHARS].strip()}" if asks(tasks) else None
