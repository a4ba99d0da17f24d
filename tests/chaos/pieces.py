"""Judges what was said to a chat platform piece by piece, and what it was made to forget; pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from tests.chaos.records import (
    NAME,
    Account,
    Guarantee,
    Harm,
    Message,
    Parked,
    Records,
    Repeat,
    Reply,
    Sent,
)

# What ends a process, or its call, between the platform's taking a piece and the note of it.
BETWEEN = ("kill", "freeze", "platform cut", "refusing disk")
_SEEN_WITHIN_S = 2.0
# The models' answers begin so; of a message that was no command, all else is a notice.
_ANSWER = ("stub: ", "echo: ")
# What a command may be told besides its answer: that it waits, or that too many do.
_WAITS = re.compile(r"\d+ messages? of this chat (?:is|are) (?:already )?waiting|Your message is saved, ")
# A letter is set aside as one that may have been sent after so many tries without an outcome, or more.
TRIES = 2
_BREAK = "\n\n"


def answered_by(sent: Sequence[Sent], messages: Mapping[str, Message]) -> list[tuple[Sent, str]]:
    """Return each piece with the message that it answers: what it replies to, else what its text names.

    A ``/stop`` that overtook its own letter is answered without either: it is the first of its chat that has
    no answer otherwise.
    """
    replied = {each.answers for each in sent}
    stops: dict[str, list[str]] = defaultdict(list)
    for one in messages.values():
        if one.kind == "stop" and one.id not in replied:
            stops[one.chat].append(one.id)
    newest: dict[str, str] = {}
    found = []
    for each in sent:
        named = NAME.search(each.text)
        message = each.answers or (named[0] if named else "")
        if not message:
            if stops[each.chat]:
                newest[each.chat] = stops[each.chat].pop(0)
            message = newest.get(each.chat, "")
        found.append((each, message))
    return found


def told(sent: Sequence[Sent], messages: Mapping[str, Message]) -> list[Reply]:
    """Put pieces together: each wording of an answer once in each chat, as of its first piece."""
    wordings: dict[tuple[str, str, str], list[Sent]] = {}
    newest: dict[str, str] = {}
    for each, message in answered_by(sent, messages):
        if message not in messages:
            continue
        if each.answers or message not in newest:
            newest[message] = each.text
        pieces = wordings.setdefault((message, each.chat, newest[message]), [])
        if each.text not in [one.text for one in pieces]:
            pieces.append(each)
    return [
        Reply(
            message,
            chat,
            _kind(messages[message], first),
            _BREAK.join(one.text for one in pieces),
            pieces[0].at,
        )
        for (message, chat, first), pieces in wordings.items()
    ]


def _kind(message: Message, text: str) -> str:
    answer = _WAITS.match(text) is None if message.command else text.startswith(_ANSWER)
    return "reply" if answer else "notice"


def check_platform(records: Records, account: Account) -> None:
    """Look at all that passed between the gateway and the platform."""
    loss, order, effect, _, _, mix, poison = account.guarantees
    account.pieces = len(records.sent_pieces)
    for update in records.updates:
        loss.checked += 1
        if update.confirmed and not update.handed:
            loss.broken.append(f"{update.message} was confirmed, and had not been handed out")
        elif not update.confirmed:
            loss.broken.append(f"{update.message} is with the platform still")
    by_message: dict[str, list[Sent]] = defaultdict(list)
    known = {message.id: message for message in records.messages}
    for each, message in answered_by(records.sent_pieces, known):
        mix.checked += 1
        if message not in known or known[message].chat != each.chat:
            mix.broken.append(
                f"{each.chat} was sent {each.text[:60]!r}, which answers {message or 'nothing'}"
            )
        by_message[message].append(each)
    for message, sent in by_message.items():
        _in_order(order, message, sent)
        _repeated(records, account, effect, message, sent)
    for letter in records.unsent:
        _set_aside(records, poison, letter)


def _in_order(order: Guarantee, message: str, sent: Sequence[Sent]) -> None:
    """A piece is sent again at once or never: none comes again behind a later one."""
    order.checked += 1
    texts = [each.text for each in sent]
    places = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    numbers = [places[text] for text in texts]
    if numbers != sorted(numbers):
        order.broken.append(f"the pieces of the answer to {message} came as {numbers}")


def _repeated(
    records: Records, account: Account, effect: Guarantee, message: str, sent: Sequence[Sent]
) -> None:
    """A piece comes again only where its sender was harmed before it could note that it was taken."""
    last: dict[str, list[Sent]] = defaultdict(list)
    for each in sent:
        last[each.text].append(each)
    for again in last.values():
        for earlier, later in pairwise(again):
            cause = _cause(records.harms, earlier, later)
            account.repeats.append(Repeat("piece", message, earlier.life, cause, later.at))
            if not cause:
                took_s = later.at - earlier.at
                words = f"a piece for {message} came again after {took_s:.2f} s"
                effect.broken.append(f"{words}, from {earlier.life}, {later.life}: no fault")


def _cause(harms: Sequence[Harm], earlier: Sent, later: Sent) -> str:
    near = (
        harm.kind
        for harm in harms
        if harm.life == earlier.life
        and harm.kind in BETWEEN
        and harm.within(earlier.at - _SEEN_WITHIN_S, later.at)
    )
    return next(near, "")


def _set_aside(records: Records, poison: Guarantee, letter: Parked) -> None:
    """An answer is set aside only where nobody can know whether it was sent: its sender was harmed."""
    asked = min((call.at for call in records.calls if call.message == letter.id), default=0.0)
    harms = [harm for harm in records.harms if harm.kind in BETWEEN and harm.ended >= asked]
    if letter.reason != "unknown" or len(harms) < TRIES:
        poison.broken.append(f"the answer to {letter.id} is parked: {letter.reason}")
