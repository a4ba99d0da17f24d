"""The tool with which a model hands a task to a subagent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from session.errors import ToolError
from session.models.model import ToolSpec
from session.subagents.records import AN_HOUR, AT_ONCE
from session.tools import ToolPlace, parameters
from session.transcript.key import is_subagent

MAX_TASK_CHARS: Final = 32_000
MAX_LABEL_CHARS: Final = 60
# What a subagent is not offered of the tools of its parent: they speak for the chat, or read what was said
# there.
NOT_FOR_SUBAGENTS: Final = frozenset(
    {"spawn", "schedule", "profile", "memory_search", "session_archive_read", "send_file"}
)
BEGUN = (
    'The subagent "{}" ({}) works on it. Its result will arrive as a separate message after this answer: do '
    "not wait for it, and do not make it up. Tell the person what is being done, and continue."
)


class Spawns(Protocol):
    """Starts subagents."""

    async def spawn(self, place: ToolPlace, *, task: str, label: str) -> str:
        """Start one for the call that runs at ``place``, and return its key; the same call starts it once.

        Raises:
            ToolError: none may be started.
        """
        ...


class Spawn:
    """Hands a task to a subagent, which works on it in a conversation of its own."""

    # The same call is the same subagent: doing it again starts nothing.
    repeatable = True

    def __init__(self, spawns: Spawns) -> None:
        self._spawns = spawns

    @property
    def spec(self) -> ToolSpec:
        """What the model is told about it."""
        return ToolSpec(
            name="spawn",
            description=(
                "Hand a long or separate task to a subagent: it works in the background, with the same "
                "files and tools, and its result arrives as a message. It knows the facts about the person, "
                "but nothing of this conversation: put everything it needs into the task. At most "
                f"{AT_ONCE} can run at the same time, and {AN_HOUR} can start per hour."
            ),
            parameters=parameters(
                "task",
                task={
                    "type": "string",
                    "description": "The complete task, and what the result should contain.",
                },
                label={"type": "string", "description": "A short name."},
            ),
        )

    def serves(self, place: ToolPlace) -> bool:
        """Say that a subagent starts none."""
        return not is_subagent(place.key)

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        """Start it, and say by which name its result will come.

        Raises:
            ToolError: as many work as may, or the task says nothing or too much.
        """
        task = arguments["task"].strip()
        if not task:
            raise ToolError("the task is empty")
        if len(task) > MAX_TASK_CHARS:
            raise ToolError(f"the task has {len(task)} characters; the limit is {MAX_TASK_CHARS}. Use a file")
        label = " ".join((arguments.get("label") or task).split())
        if len(label) > MAX_LABEL_CHARS:
            label = label[: MAX_LABEL_CHARS - 1].rstrip() + "…"
        return BEGUN.format(label, await self._spawns.spawn(place, task=task, label=label))
