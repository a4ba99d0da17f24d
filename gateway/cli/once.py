"""``chat -m``: one message, its reply to stdout, everything else to stderr."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from ulid import ULID

from channels.message import Attachment
from gateway.cli import output
from gateway.cli.json_lines import JsonLines
from gateway.cli.looking import look_on, names
from gateway.cli.talk import Talk
from gateway.errors import GatewayError, Unreachable
from gateway.service.outcome import Outcome
from gateway.turns.event import FILES, Event
from gateway.turns.model_standing import LASTING, ModelStanding
from session.turn.commands import parse

# How long a model that is away is waited for where it may come back by itself.
PATIENT_S = 15.0
MODEL_AWAY = "model_away"
_LOOKS, _LOOK_S = 10, 0.1
_KEPT = "the message is kept and will be answered; see `chat-gateway sessions show {}` later"


async def ask_once(
    talk: Talk,
    key: str,
    text: str,
    *,
    files: Sequence[Attachment] = (),
    within_s: float | None,
    lines: JsonLines | None = None,
) -> int:
    """Send one message and print its reply; return 0, 1 where none came, 69 where the model is away.

    A message that no model can answer while this daemon runs is not sent. With ``lines`` what happens to it
    is written there, in place of the bare reply.
    """
    standing = await _standing(talk)
    if standing.foreseen and asks_model(text):
        return unreachable(standing)
    message_id = str(ULID())
    told_away = asyncio.Event()

    if lines is not None:
        lines.begin(("cli:" if key.startswith("cli:") or ":" not in key else "web:") + message_id, text)

    def see(event: Event) -> None:
        if lines is not None:
            lines.see(event)
        # Where files lie is said with the answer.
        if names(event, message_id) and event.kind == "notice" and not event.ends and event.reason != FILES:
            output.words(event.text)
            if event.reason == MODEL_AWAY:
                told_away.set()

    async with asyncio.TaskGroup() as group:
        looking = group.create_task(look_on(talk, key, see), name="look on")
        gone = group.create_task(_gone(talk, standing, told_away), name="model away")
        asking = group.create_task(
            talk.ask(key, text, message_id, files=files, within_s=within_s, away=away), name="ask"
        )
        await asyncio.wait((asking, gone), return_when=asyncio.FIRST_COMPLETED)
        for task in (looking, gone, asking):
            task.cancel()
    if asking.cancelled():
        code = unreachable(gone.result())
        output.words(_KEPT.format(key))
        return code
    outcome = asking.result()
    code = _ended(outcome, key, within_s, lines)
    if outcome is None or outcome.kind == "notice":
        await _explain(talk, message_id)
    return code


async def _explain(talk: Talk, message_id: str) -> None:
    """Give the operator the cause that the chat is not told, and the cure."""
    standing = await _standing(talk)
    if not standing.up:
        unreachable(standing)
        return
    # The notice goes out just before the message is parked.
    for _ in range(_LOOKS):
        with suppress(GatewayError):
            for row in await talk.parked():
                if str(row["id"]).endswith(message_id):
                    cure = f"chat-gateway parked retry {row['id']}, once that is fixed"
                    output.error(str(row["reason"]), cure)
                    return
        await asyncio.sleep(_LOOK_S)


def _ended(outcome: Outcome | None, key: str, within_s: float | None, lines: JsonLines | None) -> int:
    if lines is not None and outcome is not None:
        lines.end(outcome)
        return 0 if outcome.kind == "reply" else 1
    if outcome is None:
        if lines is not None and within_s is not None:
            lines.late(within_s)
        output.error(f"no reply within {within_s:g} s", _KEPT.format(key))
        return 1
    if outcome.kind == "notice":
        output.words(outcome.text)
        return 1
    output.data(outcome.text)
    if outcome.files:
        output.words(outcome.files)
    return 0


async def _gone(talk: Talk, standing: ModelStanding, told_away: asyncio.Event) -> ModelStanding:
    """Return how the model stands once there is no sense in waiting for it here any longer.

    A chat that was told of this outage by an earlier message is not told again, so the time counts at once
    where the model was away before.
    """
    if standing.up:
        await told_away.wait()
        standing = await _standing(talk)
        if standing.cause in LASTING:
            return standing
    while True:
        await asyncio.sleep(PATIENT_S)
        standing = await _standing(talk)
        # A limited rate is an answer: the provider says by itself when it takes the next request.
        if not standing.up and standing.cause != "rate_limit":
            return standing


def asks_model(text: str) -> bool:
    """Say whether this text is a question for the model; no command is but ``/retry``."""
    command = parse(text)
    return command is None or command.name == "retry"


async def _standing(talk: Talk) -> ModelStanding:
    try:
        return await talk.model()
    except GatewayError:
        # Whoever asks finds out the same, and says it.
        return ModelStanding()


def unreachable(standing: ModelStanding) -> int:
    """Say why the model does not answer, and the cure; return the exit code."""
    error = no_answer(standing)
    output.error(str(error), error.hint)
    return error.exit_code


def no_answer(standing: ModelStanding) -> Unreachable:
    """Put into words why the model does not answer, with the cure."""
    why = f" ({standing.cause.replace('_', ' ')})" if standing.cause else ""
    return Unreachable(f"the language model does not answer{why}: {standing.error}", hint=standing.hint)


def away(reason: str) -> None:
    """Say that the message cannot be handed in just now."""
    output.words(f"{reason}; trying again")
