"""The answer of a job that says nothing needs to be told: stored, and sent to nobody; pure."""

from __future__ import annotations

from typing import Final

from session.context.request import Request

# Why the answer of a job is not sent: it says that nobody needs to be told.
QUIET: Final = "quiet"
NO_REPLY: Final = "NO_REPLY"
HEARTBEAT_OK: Final = "HEARTBEAT_OK"
# So much may stand beside the word in the answer to a heartbeat.
MAX_BESIDE_CHARS: Final = 300
# What people and models put around a word: Markdown, quotes, the end of a sentence.
_AROUND: Final = " \t\r\n\u00a0*_~`'\"“”‘’«»()[]<>#.,:;!…-–—"


def is_quiet(request: Request, text: str) -> bool:
    """Say whether the answer to a job is not to be sent.

    That is the word alone, ``NO_REPLY`` or ``HEARTBEAT_OK``, in capitals or not, whatever Markdown or
    punctuation stands around it. In the answer to a heartbeat ``HEARTBEAT_OK`` also counts where it begins
    or ends an answer that says little besides. People are always answered, and so is a job whose answers go
    to no chat.
    """
    if not silence_of(request):
        return False
    bare = text.strip(_AROUND).upper()
    if bare in (NO_REPLY, HEARTBEAT_OK):
        return True
    if not request.heartbeat or not (bare.startswith(HEARTBEAT_OK) or bare.endswith(HEARTBEAT_OK)):
        return False
    return len(bare) - len(HEARTBEAT_OK) <= MAX_BESIDE_CHARS


def silence_of(request: Request) -> str:
    """Return the word with which a job is to say that nobody needs to be told; empty where none counts."""
    if request.source != "cron" or not tells_a_chat(request):
        return ""
    return HEARTBEAT_OK if request.heartbeat else NO_REPLY


def tells_a_chat(request: Request) -> bool:
    """Say whether the answer goes to a chat, and does not only stand in the job's own session."""
    return bool(request.answer_to) or not request.key.startswith("cron:")
