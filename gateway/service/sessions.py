"""The sessions of a workspace as the API reads and changes them: found by ULID, paged, opened and closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.app.erasure import clear, end_all
from gateway.app.wiring_broker import awaited_at_once
from gateway.errors import MailboxDown
from gateway.service.pages import page
from session.disk.threads import start_thread
from session.errors import NoSession, StoreError
from session.store import archived, rollover
from session.store.listing import SessionRow
from session.store.media import UNKNOWN, AwaitedFiles
from session.transcript.key import SessionKey, split
from session.transcript.line import read_time
from session.transcript.transcript import Transcript

if TYPE_CHECKING:
    from gateway.app.erasure import Erasure
    from gateway.service.chats import ChatService

_SHOWN = ("instructions", "summary", "ended_at", "previous_session")


class Unknown(Exception):
    """The session is not there any more."""


class SessionService:
    """Works on the sessions of one application."""

    def __init__(self, chats: ChatService) -> None:
        self._chats = chats

    # -- reading -----------------------------------------------------------------------------------

    async def page(self, limit: int, cursor: str | None) -> tuple[list[SessionRow], str | None]:
        """List sessions, newest message first, from behind the cursor; and the cursor of the next page.

        Raises:
            BadCursor: the cursor is none of ours.
        """
        return page(
            await self._chats.store.rows(), lambda row: row.place, limit=limit, cursor=cursor, descending=True
        )

    async def page_of(self, key: str, limit: int, cursor: str | None) -> tuple[list[SessionRow], str | None]:
        """List those of one chat as ``page`` does, the active one first, then the one that spoke last.

        Raises:
            BadCursor: the cursor is none of ours.
        """
        rows = [row for row in await self._chats.store.rows() if row.key == key]
        return page(rows, _place_of_chat, limit=limit, cursor=cursor, descending=True)

    async def find(self, session_id: str) -> SessionRow | None:
        """Find a session by its ULID."""
        for row in await self._chats.store.rows():
            if row.id == session_id:
                return row
        return None

    async def shown(self, row: SessionRow) -> dict[str, Any]:
        """Show one session with what line 1 says of it alone."""
        metadata = (await self._look(row)).inner
        return row.as_dict() | {name: metadata.get(name) for name in _SHOWN}

    async def messages(self, row: SessionRow) -> Sequence[bytes]:
        """Read its message lines."""
        return (await self._look(row)).messages

    async def _look(self, row: SessionRow) -> Transcript:
        store = self._chats.store
        view = await (store.look(SessionKey(row.key)) if row.active else store.look_up(row.id))
        if view is None or view.session_id != row.id:
            # Between the listing and this look the session was ended or opened again.
            view = await store.look_up(row.id)
        return view.transcript if view is not None else Transcript(row.stem)

    # -- changing ----------------------------------------------------------------------------------

    async def patch(self, row: SessionRow, changes: Mapping[str, str | None]) -> dict[str, Any]:
        """Change line 1; None removes a name.

        Raises:
            Unknown, StoreError.
        """
        store = self._chats.store

        def head_of(transcript: Transcript) -> bytes:
            inner = {**transcript.inner, **changes}
            updated = read_time(transcript.metadata.get("updated_at")) or store.clock()
            return transcript.head(
                now=updated, inner={name: value for name, value in inner.items() if value is not None}
            )

        if row.active and changes:
            async with store.open(SessionKey(row.key)) as session:
                if await session.checkpoint(metadata=changes, of=row.id):
                    return await self._again(row)
        if changes:
            await start_thread(
                lambda: archived.renew_head(store.layout, row.stem, row.id, head_of), name="archive"
            )
        return await self._again(row)

    async def delete(self, row: SessionRow) -> dict[str, Any]:
        """Remove a session for good, active or ended, and all copies of it in the archive.

        Raises:
            Unknown, StoreError.
        """
        store = self._chats.store
        gone = row.active and await self._clear(row.key, of=row.id)
        await store.state.open()
        copies = await start_thread(
            lambda: archived.delete(store.state, store.layout, row.key, row.stem, row.id), name="archive"
        )
        store.forget(SessionKey(row.key))
        await store.state.compact()
        if not gone and not copies:
            raise Unknown(row.id)
        return {"id": row.id, "deleted": True}

    async def resume(self, row: SessionRow) -> dict[str, Any]:
        """Open an ended session again; the active one of its key is archived. An active one stays so.

        Raises:
            Unknown, StoreError.
            OtherAgent: the agent that it is of does not answer in its chat.
        """
        try:
            async with self._chats.store.open(SessionKey(row.key)) as session:
                if (services := self._chats.application.services) is not None:
                    await services.follow_agent(session, row.id)
                swap = await session.change(lambda *hands: rollover.reopen(*hands, session_id=row.id))
        except NoSession:
            raise Unknown(row.id) from None
        if swap.left:
            await self._left(row.key, swap.left)
        return await self._again(row)

    async def close(self, row: SessionRow) -> dict[str, Any]:
        """End a session without opening another; one that has ended stays so.

        Raises:
            Unknown, StoreError: one without a message is gone then, and unknown.
        """
        if row.active:
            async with self._chats.store.open(SessionKey(row.key)) as session:
                closed = await session.change(lambda *hands: rollover.close(*hands, of=row.id))
            if closed is not None:
                await self._left(row.key, closed)
        return await self._again(row)

    async def clear(self, *, key: str | None, chat_id: str | None) -> list[str]:
        """Delete the active transcript of a key, or of a chat id on every channel; return whose there was.

        Raises:
            StoreError: call it again.
        """
        return [one for one in await self._meant(key, chat_id) if await self._clear(one)]

    async def erase(self, *, key: str | None, chat_id: str | None) -> dict[str, Any]:
        """Remove all that is kept of a key, or of a chat id on every channel; say what that was.

        Raises:
            SessionError, GatewayError, ChannelError: call it again.
        """
        had: list[str] = []
        erased = []
        for one in await self._meant(key, chat_id):
            report, there = await self._erasure().key(one)
            erased.append(report.as_dict())
            had += [one] if there else []
        return {"cleared": had, "erased": erased}

    async def erase_person(self, name: str) -> dict[str, Any]:
        """Remove all that is kept of a person of ``[people]``; as ``erase``.

        Raises:
            Nobody: there is no such person.
        """
        report = await self._erasure().person(name)
        return {"cleared": [], "erased": [report.as_dict()]}

    def _erasure(self) -> Erasure:
        application = self._chats.application
        if application.services is None:
            raise MailboxDown("the gateway is still starting")
        # A daemon starts quicker without what only an erasure imports.
        from gateway.app.erasure import Erasure

        return Erasure(
            *(application.settings, application.services),
            mailbox=application.mailbox,
            letters=application.letters,
        )

    async def _meant(self, key: str | None, chat_id: str | None) -> list[str]:
        keys = {key} if key is not None else set[str]()
        if chat_id is not None:
            rows = await self._chats.store.rows()
            keys |= {row.key for row in rows if split(row.key)[1] == chat_id}
            letters = self._chats.application.letters
            lanes = await letters.keys() if letters is not None else []
            keys |= {lane for lane in lanes if split(lane)[1] == chat_id}
        return sorted(keys)

    async def _clear(self, key: str, *, of: str | None = None) -> bool:
        application = self._chats.application
        return await clear(
            *(key, self._chats.store),
            state=application.settings.state,
            services=application.services,
            letters=application.letters,
            of=of,
            awaited=self._awaited,
        )

    async def _awaited(self) -> AwaitedFiles:
        try:
            return await awaited_at_once(self._chats.application.mailbox)
        except StoreError:
            # What came lately stays then, until the daily look.
            return UNKNOWN

    async def _left(self, key: str, session_id: str) -> None:
        application = self._chats.application
        services = application.services
        # Nobody waits for those that a conversation has started which ends.
        await end_all(services.spawning if services is not None else None, application.settings.state, key)
        if services is not None:
            await application.left(key, session_id)

    async def _again(self, row: SessionRow) -> dict[str, Any]:
        found = await self.find(row.id)
        if found is None:
            raise Unknown(row.id)
        return await self.shown(found)


def _place_of_chat(row: SessionRow) -> tuple[int, int, str]:
    return (int(row.active), *row.place)
