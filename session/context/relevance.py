"""Which exchanges of a history are sent in mode ``relevant``; decisions without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from session.transcript.repair import plain_text

# So much of a text is compared: small embedding models take 512 tokens, and refuse more.
MAX_TEXT_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Relevance:
    """The numbers of mode ``relevant``, all about what stands before the running turn.

    ``candidates`` newest messages are looked at. The ``always`` newest exchanges are sent whatever they
    hold; older ones whose similarity to the new message is ``threshold`` or more, up to ``most`` messages.
    """

    candidates: int = 30
    always: int = 3
    most: int = 20
    threshold: float = 0.45


def comparable(content: object) -> str:
    """Return the part of a message's text that is compared; empty where it says nothing."""
    return plain_text(content).strip()[:MAX_TEXT_CHARS].strip()


def compared(older: Sequence[Mapping[str, Any]], rules: Relevance) -> list[str]:
    """List the texts whose similarity decides, each once, the newest first.

    Args:
        older: the messages before the running turn that could be sent, oldest first.
        rules: the numbers.
    """
    found = (_texts(older, exchange) for exchange in reversed(_doubtful(older, rules)))
    return list(dict.fromkeys(text for texts in found for text in texts))


def chosen(
    older: Sequence[Mapping[str, Any]], rules: Relevance, similarity: Mapping[str, float] | None
) -> list[int]:
    """Choose whole exchanges: the newest ones, and of the others the most similar that fit.

    Args:
        older: the messages before the running turn that could be sent, oldest first.
        rules: the numbers.
        similarity: of each text that ``compared`` lists to the new message; None where nothing is known:
            then the newest exchanges that fit, without a gap.

    Returns:
        Their places, ascending. An exchange that a limit would tear is left out whole; the newest ones
        are sent over every limit.
    """
    sent = _exchanges(older)[_always_from(older, rules) :]
    left = rules.most - sum(map(len, sent))
    for exchange in _ranked(older, rules, similarity):
        if len(exchange) <= left:
            sent.append(exchange)
            left -= len(exchange)
        elif similarity is None:
            break
    return sorted(at for exchange in sent for at in exchange)


def _ranked(
    older: Sequence[Mapping[str, Any]], rules: Relevance, similarity: Mapping[str, float] | None
) -> Iterable[range]:
    """Yield the exchanges to fill up with, the best first; of equals the newer."""
    newest_first = reversed(_doubtful(older, rules))
    if similarity is None:
        return newest_first
    scored = [
        (max((similarity.get(text, -1.0) for text in _texts(older, exchange)), default=-1.0), exchange)
        for exchange in newest_first
    ]
    near = [(score, exchange) for score, exchange in scored if score >= rules.threshold]
    return (exchange for _, exchange in sorted(near, key=lambda pair: pair[0], reverse=True))


def _doubtful(older: Sequence[Mapping[str, Any]], rules: Relevance) -> list[range]:
    """List the exchanges before the newest that lie among the candidates with all their messages."""
    since = len(older) - rules.candidates
    exchanges = _exchanges(older)[: _always_from(older, rules)]
    return [exchange for exchange in exchanges if exchange.start >= since]


def _always_from(older: Sequence[Mapping[str, Any]], rules: Relevance) -> int:
    return max(len(_exchanges(older)) - rules.always, 0)


def _exchanges(older: Sequence[Mapping[str, Any]]) -> list[range]:
    starts = [at for at, message in enumerate(older) if message["role"] == "user" or at == 0]
    return [range(start, stop) for start, stop in pairwise([*starts, len(older)])]


def _texts(older: Sequence[Mapping[str, Any]], exchange: range) -> list[str]:
    spoken = (older[at] for at in exchange if older[at]["role"] in ("user", "assistant"))
    texts = (comparable(message.get("content")) for message in spoken)
    return [text for text in texts if text]
