"""Takes the word of a person about what waits, whether it is pressed, typed or sent, and says what it did."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, Literal

from session.approvals.files import ApprovalFiles, Decided
from session.approvals.record import Approval, State, is_id
from session.disk.threads import start_thread

Word = Literal["allow", "deny"]
WORDS: Final[dict[Word, Literal["allowed", "denied"]]] = {"allow": "allowed", "deny": "denied"}

ALLOWED_SAID: Final = "Allowed."
DENIED_SAID: Final = "Denied; it will not run."
# What is said where a word counts.
COUNTED: Final = frozenset({ALLOWED_SAID, DENIED_SAID})
NOTHING_WAITS: Final = "No approval is pending in this chat."
SEVERAL_WAIT: Final = "Several approvals are pending; add an id: /approve or /deny {ids}."
UNSEEN_SAID: Final = (
    "The pending approval was requested after your message; add its id: /approve or /deny {ids}."
)
UNKNOWN_SAID: Final = "There is no such approval request in this chat."
LATE_SAID: Final = "Too late: this approval has expired, and it was not run."
CANCELLED_SAID: Final = "Too late: the answer was stopped, and it was not run."
AGAIN_SAID: Final = "Already decided: {what} by {who}."
# Some platforms tell the time of a message in whole seconds: it may have been sent so much later.
SLACK: Final = timedelta(seconds=1)
_WHAT: Final[dict[State, str]] = {"denied": "denied", "expired": "not approved in time"}


class Answers:
    """The words of people about what waits.

    ``heard`` is called with the id of each approval that was just decided here.
    """

    def __init__(self, files: ApprovalFiles) -> None:
        self.files = files
        self.heard: Callable[[str], None] = lambda _: None

    async def say(
        self, word: Word, id_: str, *, chat: str, by: str, via: str, at: datetime | None = None
    ) -> str:
        """Take a word that came in ``chat``; return what to tell there.

        Args:
            word: what the person wants.
            id_: which approval; empty: the one that waits in the chat, and did when it was said.
            chat: the key of the chat in which it was said.
            by: who said it, as people are named.
            via: the id of the message or press; the same one again counts once.
            at: when it was said, aware; None: nobody knows, and it is taken for now.

        Raises:
            StoreError: the disk refuses; nothing was changed.
        """
        if not id_:
            open_ = await start_thread(lambda: self.files.waiting(chat), name="approval")
            mine = await start_thread(lambda: self._by(chat, via), name="approval") if via else None
            # Nobody means a call that was not asked about yet.
            seen = [each for each in open_ if at is None or each.asked_at < at + SLACK]
            if mine is None and len(seen) != 1:
                ids = " | ".join(each.id for each in open_)
                return (SEVERAL_WAIT if seen else UNSEEN_SAID).format(ids=ids) if open_ else NOTHING_WAITS
            id_ = mine.id if mine is not None else seen[0].id
        return words_of(await self.decide(word, id_, chat=chat, by=by, via=via))

    async def decide(self, word: Word, id_: str, *, chat: str = "", by: str, via: str = "") -> Decided:
        """Take a word; without ``chat`` wherever it was asked. Raises as ``say``."""
        if not is_id(id_):
            return Decided(None, "unknown")
        done = await start_thread(
            lambda: self.files.decide(id_, WORDS[word], chat=chat, by=by, via=via), name="approval"
        )
        if done.approval is not None:
            self.heard(done.approval.id)
        return done

    def _by(self, chat: str, via: str) -> Approval | None:
        """Find what this very message decided: it came again after a crash."""
        mine = (each for each in self.files.all() if each.decided_via == via and each.call.chat == chat)
        return next(mine, None)


def words_of(done: Decided) -> str:
    """Say in a sentence what a word did, or why it does not count."""
    match done.refusal:
        case "unknown":
            return UNKNOWN_SAID
        case "late":
            return LATE_SAID
        case "cancelled":
            return CANCELLED_SAID
    assert done.approval is not None
    if done.refusal == "decided":
        what = _WHAT.get(done.approval.state, "allowed")
        return AGAIN_SAID.format(what=what, who=done.approval.decided_by or "a person")
    return DENIED_SAID if done.approval.state == "denied" else ALLOWED_SAID
