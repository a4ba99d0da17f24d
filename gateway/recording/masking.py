"""Takes out of a recording who wrote what, and leaves its shape: who is the same, how long, which command."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from gateway.recording.letter import Letter, Recording
from session.transcript.key import split
from session.turn.command_names import ALIASES, DESCRIPTIONS

_COMMAND: Final = re.compile(r"(\s*/([A-Za-z][A-Za-z0-9_]*))(@[A-Za-z0-9_]+)?(?=\s|$)")
# Behind others a number may be anybody's words.
_NUMBERED: Final = frozenset({"resume", "forget"})
# What a program of somebody else's is called may say whose it is.
_CHANNELS: Final = frozenset({"telegram", "discord", "web", "cli", "cron"})
_NUMBERS: Final = re.compile(r"\s+\d{1,4}\s*")
_NAME_CHARS: Final = 12


def masked(recording: Recording) -> Recording:
    """Return it without a word of anybody's, their ids and the names of their files.

    A letter becomes ``x``, a digit ``0``; white space and punctuation stay, and so does a command of ours
    with a number behind it. The same chat or person has the same name throughout one recording; the salt that
    would lead back from it is kept nowhere.
    """
    salt = secrets.token_bytes(32)

    def name_of(text: str) -> str:
        return hmac.new(salt, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:_NAME_CHARS]

    letters = [_masked(each, at, name_of) for at, each in enumerate(recording.letters, 1)]
    return replace(recording, letters=letters, workspace="", masked=True)


def _masked(letter: Letter, at: int, name_of: Callable[[str], str]) -> Letter:
    channel, chat_id = split(letter.key)
    hidden = name_of(letter.key)
    return replace(
        letter,
        key=f"{channel if channel in _CHANNELS else 'other'}:{hidden}" if chat_id else hidden,
        id=str(at),
        text=hidden_text(letter.text),
        reply=hidden_text(letter.reply),
        sender=name_of(letter.sender) if letter.sender else "",
        files=[f"file{n}" for n in range(1, len(letter.files) + 1)],
    )


def hidden_text(text: str) -> str:
    """Return a text of the same shape that says nothing."""
    found = _COMMAND.match(text)
    if found is None or (name := found[2].lower()) not in {*DESCRIPTIONS, *ALIASES}:
        return "".join(map(_hidden, text))
    rest, bot = text[found.end() :], found[3] or ""
    stays = name in _NUMBERED and _NUMBERS.fullmatch(rest)
    return found[1] + "".join(map(_hidden, bot)) + (rest if stays else "".join(map(_hidden, rest)))


def _hidden(char: str) -> str:
    if char.isdigit():
        return "0"
    # Marks and symbols of other scripts could be read together with what stands around them.
    return char if char.isascii() and not char.isalpha() else "x"
