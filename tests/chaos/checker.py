"""Judges the records of a batch: seven guarantees, each with what breaks it; pure."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tests.chaos.pieces import check_platform
from tests.chaos.records import CALL, NAME, Account, Call, Guarantee, Message, Records, Reply
from tests.chaos.repeats import repeated_calls, repeated_replies
from tests.chaos.stub_model import words_for

_SHOWN = 160

PROMISES = {
    "G1": "no message is lost",
    "G2": "turns and replies keep their order",
    "G3": "each message has one effect, and each repeated request or reply has a cause",
    "G4": "a process that receives a message again during its turn does not ask the model again",
    "G5": "each line is stored once, and every file is valid",
    "G6": "no chat contains anything of another",
    "G7": "a message that the model refuses is parked and reported, and nothing else is",
}


def check(records: Records) -> Account:
    """Return what holds and what does not; every repeat is named with its cause."""
    account = Account([Guarantee(name, promise) for name, promise in PROMISES.items()])
    account.messages = len(records.messages)
    account.calls = len(records.calls)
    account.least_calls = sum(message.rounds for message in records.messages)
    loss, order, effect, flight, fence, mix, poison = account.guarantees
    told = _told(records, mix)
    unsent = {letter.id for letter in records.unsent}
    loss.broken += records.ended
    fence.broken += records.illegal
    effect.broken += records.notes
    for chat, messages in records.sent.items():
        sessions = records.lines.get(chat, [])
        lines = _flat(sessions)
        finals = {str(line.get("message_id")): line for line in lines if line.get("final")}
        account.stopped += sum(bool(line.get("stopped")) for line in finals.values())
        _answers(loss, effect, messages, finals, told, unsent)
        _stopped(loss, messages, finals)
        _order(order, chat, messages, sessions)
        _one_at_a_time(order, chat, messages, sessions)
        if chat in records.ordered:
            _reply_order(order, chat, messages, records.replies)
        _stored_once(fence, sessions)
        fence.broken += _wrong_results(chat, lines)
        _mix(mix, chat, lines, messages, told)
    _mixed_calls(mix, records)
    _texts(records, loss, effect)
    repeated_calls(records, account.repeats, effect, flight)
    repeated_replies(records, account.repeats, effect)
    check_platform(records, account)
    _poison(poison, records, told)
    return account


def _flat(sessions: Sequence[Sequence[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    return [line for session in sessions for line in session]


def _told(records: Records, mix: Guarantee) -> dict[str, list[Reply]]:
    """Return what each message's own chat was told; what any other was told for it mixes them."""
    chats = {message.id: message.chat for message in records.messages}
    told: dict[str, list[Reply]] = {}
    for reply in records.replies:
        if reply.chat == chats.get(reply.message):
            told.setdefault(reply.message, []).append(reply)
        else:
            what = f"the {reply.kind} {short(reply.text)!r}"
            mix.broken.append(f"{reply.chat} was told {what}, which answers {reply.message or 'nothing'}")
    return told


def _replies(told: Mapping[str, list[Reply]], id: str) -> list[str]:
    return [reply.text for reply in told.get(id, ()) if reply.kind == "reply"]


def _answers(
    loss: Guarantee,
    effect: Guarantee,
    messages: Sequence[Message],
    finals: Mapping[str, Mapping[str, Any]],
    told: Mapping[str, list[Reply]],
    unsent: Collection[str],
) -> None:
    """What was told is what was stored, in one wording; its beginning where the rest was set aside."""
    for message in messages:
        loss.checked += 1
        effect.checked += 1
        texts = set(_replies(told, message.id))
        final, aside = finals.get(message.id), message.id in unsent
        stopped = final is not None and final.get("stopped")
        if message.kind == "poison" and not stopped:
            if not told.get(message.id) and not aside:
                loss.broken.append(f"{message.id} was refused, and its chat not told")
        elif not message.command and final is None:
            loss.broken.append(f"{message.id} ({message.kind}) has no answer in the transcript")
        elif not stopped and not texts and not aside:
            loss.broken.append(f"{message.id} ({message.kind}) has no reply")
        if len(texts) > 1:
            effect.broken.append(f"{message.id} was told {sorted(texts)}")
        elif message.command and "" in map(str.strip, texts):
            effect.broken.append(f"{message.id} ({message.kind}) was told nothing but blanks")
        elif stopped and texts:
            effect.broken.append(f"{message.id} was stopped and told {texts}")
        elif final is not None and any(
            text != final["content"] and not (aside and final["content"].startswith(text)) for text in texts
        ):
            kept = set(map(short, texts))
            effect.broken.append(f"{message.id}: stored {short(str(final['content']))!r}, told {kept}")


def _stopped(loss: Guarantee, messages: Sequence[Message], finals: Mapping[str, Mapping[str, Any]]) -> None:
    """Each answer that was stopped has a ``/stop`` of its own behind it: one stops one turn."""
    stops = 0
    for message in reversed(messages):
        if message.kind == "stop":
            stops += 1
        elif finals.get(message.id, {}).get("stopped"):
            if not stops:
                loss.broken.append(f"the answer to {message.id} was stopped, and no /stop came for it")
            stops = max(stops - 1, 0)


def sessions_of(messages: Sequence[Message]) -> list[list[str]]:
    """Return each session's questions: ``/new`` ends one, ``/resume`` opens the one that ended last."""
    active: list[str] = []
    ended: list[list[str]] = []
    for message in messages:
        if message.kind == "new" or (message.kind == "resume" and ended):
            again = ended.pop() if message.kind == "resume" else []
            # One in which nothing was said leaves nothing.
            ended += [active] if active else []
            active = again
        elif not message.command and message.kind != "poison":
            active.append(message.id)
    place = {message.id: number for number, message in enumerate(messages)}
    return sorted([ids for ids in [*ended, active] if ids], key=lambda ids: place[ids[0]])


def _order(
    order: Guarantee, chat: str, messages: Sequence[Message], sessions: Sequence[Sequence[Mapping[str, Any]]]
) -> None:
    """Each command ended, began or reopened a session, and in each the turns follow one another."""
    wanted = sessions_of(messages)
    kept = {one for ids in wanted for one in ids}
    order.checked += len(kept)
    place = {message.id: number for number, message in enumerate(messages)}
    for role, field in (("user", None), ("assistant", "final")):
        found = [
            [
                str(line.get("message_id"))
                for line in session
                if line["role"] == role and (not field or line.get(field))
            ]
            for session in sessions
        ]
        found = [[one for one in dict.fromkeys(ids) if one in kept] for ids in found]
        # The names of ended sessions tell the time of a clock that jumps: they do not give their order.
        found = sorted((ids for ids in found if ids), key=lambda ids: place.get(ids[0], 0))
        if found != wanted:
            order.broken.append(f"{chat}: {role} lines {found}, not {wanted}")


def _one_at_a_time(
    order: Guarantee, chat: str, messages: Sequence[Message], sessions: Sequence[Sequence[Mapping[str, Any]]]
) -> None:
    """Between a question and its answer no line of another turn stands.

    Records of our own belong to no turn. Poison that was set aside has no answer: what follows may begin.
    """
    poison = {message.id for message in messages if message.kind == "poison"}
    for session in sessions:
        running = ""
        for line in session:
            if (role := line["role"]) == "system":
                continue
            of = str(line.get("message_id"))
            if running not in ("", of) and running not in poison:
                order.broken.append(f"{chat}: {role} line of {of} within the turn of {running}")
            running = "" if line.get("final") else of


def _reply_order(order: Guarantee, chat: str, messages: Sequence[Message], replies: Sequence[Reply]) -> None:
    """The first delivery of each reply keeps the order of its chat; ``/stop`` is answered out of line."""
    mine = {message.id for message in messages if message.kind not in ("stop", "poison")}
    came = list(
        dict.fromkeys(reply.message for reply in replies if reply.kind == "reply" and reply.message in mine)
    )
    order.checked += len(came)
    wanted = [message.id for message in messages if message.id in set(came)]
    if came != wanted:
        first = next(i for i, (a, b) in enumerate(zip(came, wanted, strict=True)) if a != b)
        order.broken.append(f"{chat}: replies {came[first : first + 4]}, not {wanted[first : first + 4]}")


def _stored_once(fence: Guarantee, sessions: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    lines = _flat(sessions)
    asked = _flat([_not_set_aside(session) for session in sessions])
    fence.checked += len(lines)
    users = Counter(str(line.get("message_id")) for line in asked if line.get("role") == "user")
    finals = Counter(str(line.get("message_id")) for line in lines if line.get("final"))
    for what, count in (("user lines", users), ("answers", finals)):
        fence.broken += [f"{one} has {times} {what}" for one, times in count.items() if times > 1]


def _not_set_aside(session: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Leave out what a transcript says was taken back as its message was set aside.

    Whoever dies before that is done leaves the message to another process, which asks and stores it anew.
    """
    gone = {
        at
        for number, line in enumerate(session)
        if line.get("kind") == "undo" and line.get("set_aside")
        for at in range(int(line["from"]), number)
        if session[at].get("message_id") == session[int(line["from"])].get("message_id")
    }
    return [line for number, line in enumerate(session) if number not in gone]


def _wrong_results(chat: str, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Find tool calls without one result in the lines that follow them, and results of no call."""
    waiting: list[str] = []
    wrong = []
    for line in lines:
        role, of = line.get("role"), line.get("message_id")
        if role == "tool" and line.get("tool_call_id") in waiting:
            waiting.remove(str(line["tool_call_id"]))
        elif role == "tool" or (waiting and role in ("user", "assistant")):
            wrong.append(f"{chat}: {role} line of {of}, while {waiting} wait")
        waiting += [call["id"] for call in line.get("tool_calls") or []]
    return [*wrong, f"{chat}: no result for {waiting}"] if waiting else wrong


def _mix(
    mix: Guarantee,
    chat: str,
    lines: Sequence[Mapping[str, Any]],
    messages: Sequence[Message],
    told: Mapping[str, list[Reply]],
) -> None:
    """Neither a chat's file nor its replies name a message of another; a reply names its own alone."""
    for line in lines:
        others = {found[0] for found in NAME.finditer(json.dumps(line)) if found[1] != chat}
        if others:
            mix.broken.append(f"the transcript of {chat} holds {sorted(others)}")
    for message in messages:
        for text in _replies(told, message.id):
            mix.checked += 1
            others = {found[0] for found in NAME.finditer(text)} - {message.id}
            if others:
                mix.broken.append(f"{message.id} was told of {sorted(others)}")


def _mixed_calls(mix: Guarantee, records: Records) -> None:
    for call in records.calls:
        mix.checked += 1
        chat = call.message.partition("-")[0]
        others = sorted(name for name in call.named if name.partition("-")[0] != chat)
        if others:
            mix.broken.append(f"the model was told of {others} for {call.message}")
    for named in records.asides:
        mix.checked += 1
        if len({name.partition("-")[0] for name in named}) > 1:
            mix.broken.append(f"one request of the background told the model of {sorted(named)}")


def _poison(poison: Guarantee, records: Records, told: Mapping[str, list[Reply]]) -> None:
    stopped = {
        line["message_id"] for each in records.lines.values() for line in _flat(each) if line.get("stopped")
    }
    all_poison = {message.id for message in records.messages if message.kind == "poison"}
    # One that ``/stop`` reached may have been parked before, by a process that died of it.
    refused = all_poison - stopped
    parked = Counter(letter.id for letter in records.parked)
    poison.checked = len(refused)
    poison.broken += [f"{one} is not parked" for one in sorted(refused - set(parked))]
    # A death between the parking and its mark parks once more, after one more request.
    asked = Counter(call.message for call in records.calls)
    for one, times in parked.items():
        if times > max(asked[one], 1):
            poison.broken.append(f"{one} is parked {times} times, and was asked about {asked[one]} times")
    for letter in records.parked:
        if letter.id not in all_poison:
            poison.broken.append(f"{letter.id} is parked: {letter.reason}")
    for one in sorted(refused):
        if _replies(told, one):
            poison.broken.append(f"{one} was answered: {_replies(told, one)}")


def _texts(records: Records, loss: Guarantee, effect: Guarantee) -> None:
    """Look at every question and answer of every transcript.

    A question stands as it was sent. An answer that was not stopped is what the model said to the last
    request of this very message.
    """
    made: dict[str, list[Call]] = defaultdict(list)
    for call in records.calls:
        made[call.message].append(call)
    for chat, messages in records.sent.items():
        known = {message.id: message for message in messages if not message.command}
        for line in (line for session in records.lines.get(chat, ()) for line in session):
            of = str(line.get("message_id"))
            message = known.get(of)
            if line["role"] == "user":
                loss.broken += _question(chat, of, message, str(line.get("content") or ""))
            elif line.get("final") and not line.get("stopped"):
                effect.broken += _answer(chat, of, message, line, made[of])


def short(text: str) -> str:
    """Return a text, or its beginning and length where it is long."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def _question(chat: str, of: str, message: Message | None, text: str) -> list[str]:
    if message is None:
        return [f"{chat} has a question {of} that it never sent: {short(text)!r}"]
    if text != message.text:
        return [f"the question {of} is stored as {short(text)!r}, not {short(message.text)!r}"]
    return []


def _answer(
    chat: str, of: str, message: Message | None, line: Mapping[str, Any], calls: list[Call]
) -> list[str]:
    text = str(line.get("content") or "")
    if message is not None and text == f"echo: {message.text}":
        # The echo model needs no server, and nobody counts what it is asked.
        return []
    if message is None:
        return [f"{chat} has an answer to {of}, which it never sent: {short(text)!r}"]
    found = CALL.search(text)
    last = {
        call.n
        for call in calls
        if call.round == message.rounds - 1 and call.outcome in ("running", "answered")
    }
    if found is None or int(found[1]) not in last:
        return [f"the answer to {of} was said to none of its last requests {sorted(last)}: {short(text)!r}"]
    if text != (said := words_for(message.text, int(found[1]))):
        return [f"the answer to {of} is stored as {short(text)!r}, and was {short(said)!r}"]
    return []
