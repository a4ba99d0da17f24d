"""What every tool call of a turn passes: the policy, and where it says so a person's word, once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final, Literal

from session.approvals.files import ApprovalFiles
from session.approvals.record import Approval, Call
from session.approvals.rules import Decision, PolicyRules
from session.disk.threads import start_thread
from session.errors import ApprovalLost
from session.tools import ToolPlace
from session.transcript.key import split

# Whoever is asked must be able to read it in full: more is not put to a chat.
MAX_ARGUMENTS_CHARS: Final = 20_000
# Their answers are read when nobody is there, or by another turn.
UNATTENDED: Final = frozenset({"cron", "sub"})

DENIED_SAID: Final = "error: not run: the policy of this gateway does not allow {tool} here"
UNATTENDED_SAID: Final = "error: not run: {tool} needs approval by a person, and nobody can be asked here"
TOO_LONG_SAID: Final = (
    "error: not run: {tool} needs approval by a person, and its arguments are longer than the {limit} "
    "characters that can be shown to a person; do it in smaller steps"
)
REFUSED_SAID: Final = "error: not run: {who} denied this call"
EXPIRED_SAID: Final = "error: not run: nobody approved it within {timeout_s:g} s"
CANCELLED_SAID: Final = "error: not run: the turn was stopped before anybody approved it"
LOST_SAID: Final = "error: not run: its approval can no longer be read"

Way = Literal["new", "begun"]
Told = Callable[[Approval], Awaitable[None]]


class AwaitsApproval(Exception):
    """The turn has to wait for a person: its lines are stored, and run again it goes on with this call."""

    def __init__(self, approval: Approval) -> None:
        super().__init__(f"{approval.call.tool} waits for an approval")
        self.approval = approval


class Refused(Exception):
    """The call is not run; ``str(error)`` is its result for the model."""


async def _nobody(_: Approval) -> None:
    return None


class Gate:
    """Lets calls pass as the policy says.

    ``told`` is called with each approval that is no longer open, before anything follows from that; the same
    one may come again after a crash.
    """

    def __init__(self, rules: PolicyRules, files: ApprovalFiles) -> None:
        self.rules = rules
        self.files = files
        self.told: Told = _nobody

    def decide(self, name: str, place: ToolPlace, senders: Collection[str]) -> Decision:
        """Say what the policy says of a tool, by its policy name, for all people whom the turn answers."""
        return self.rules.decide(name, place, senders)

    async def enter(self, call: Call, place: ToolPlace) -> Way:
        """Return once a person allowed the call: ``begun`` where it was begun before, and perhaps done.

        Raises:
            AwaitsApproval: nobody decided yet.
            Refused: it is not to be run.
            StoreError: nothing was changed; try again later.
        """
        if split(place.key)[0] in UNATTENDED or place.source != "interactive":
            raise Refused(UNATTENDED_SAID.format(tool=call.tool))
        if len(call.arguments) > MAX_ARGUMENTS_CHARS:
            raise Refused(TOO_LONG_SAID.format(tool=call.tool, limit=MAX_ARGUMENTS_CHARS))
        asked = Approval.of(call, self.files.now(), timeout_s=self.rules.timeout_s)
        try:
            return await self._decided(await start_thread(lambda: self.files.ask(asked), name="approval"))
        except ApprovalLost:
            raise Refused(LOST_SAID) from None

    async def _decided(self, found: Approval) -> Way:
        if found.open and found.is_late(self.files.now()):
            found = await start_thread(lambda: self.files.expire(found.id), name="approval")
        if found.open:
            raise AwaitsApproval(found)
        if found.state not in ("started", "ended"):
            await self.told(found)
        match found.state:
            case "denied":
                raise Refused(REFUSED_SAID.format(who=found.decided_by or "a person"))
            case "expired":
                raise Refused(EXPIRED_SAID.format(timeout_s=found.timeout_s))
            case "cancelled":
                raise Refused(CANCELLED_SAID)
        # On disk before the tool runs: after a crash nobody knows whether it did.
        before = await start_thread(lambda: self.files.begin(found.id), name="approval")
        return "new" if before.state == "allowed" else "begun"

    async def leave(self, call: Call) -> None:
        """Note that the result of a call that was let pass is stored."""
        id_ = Approval.of(call, self.files.now(), timeout_s=0).id
        try:
            await start_thread(lambda: self.files.end(id_), name="approval")
        except ApprovalLost:
            # Its result is stored: nobody asks about it again.
            return

    async def cancel(self, key: str, message_id: str) -> set[str]:
        """End what a stopped turn had asked; return the ids of the calls that were surely not begun."""
        gone = await start_thread(lambda: self.files.cancel(key, message_id), name="approval")
        for each in gone:
            await self.told(each)
        return {each.call.call_id for each in gone}
