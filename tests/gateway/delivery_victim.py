"""A process to be killed: it delivers what waits in a queue to a recording server, one line per chunk.

``python -m tests.gateway.delivery_victim FOLDER PORT LETTERS``: a new folder gets that many letters first.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from channels.base import Chunk, Emit, Rendered
from channels.errors import SendUnknown
from channels.message import Outbound
from gateway.outbound.send_log import SendLog
from gateway.outbound.sender import OutboundSender
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import Post, outbound
from tests.gateway.delivery_place import FreeLimiter
from tests.support.until import until

CHATS, SIZE, PIECES = 4, 20, 3


class Wire:
    """An adapter that writes each chunk as a line to a server and waits for its answer."""

    name = "wire"
    safe_to_repeat = False

    def __init__(self, port: int) -> None:
        self._port = port

    async def run(self, emit: Emit) -> None:
        await asyncio.Event().wait()

    def split(self, text: str) -> list[Rendered]:
        return [Rendered(text[at : at + SIZE]) for at in range(0, len(text), SIZE)]

    async def send(self, chunk: Chunk) -> str:
        assert isinstance(chunk.content, Rendered)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(f"{chunk.chat_id} {chunk.content.plain}\n".encode())
            answer = await reader.readline()
        finally:
            writer.close()
        if not answer:
            raise SendUnknown("the server broke the connection")
        return answer.decode().strip()

    async def aclose(self) -> None:
        return


def text_of(number: int) -> str:
    """Make a text of three chunks, each of which names its letter and its place."""
    return "".join(f"letter {number} chunk {chunk}".ljust(SIZE, ".") for chunk in range(PIECES))


async def put_all(mailbox: EmbeddedMailbox, letters: int) -> None:
    """Put the letters, chat by chat in turn."""
    for number in range(letters):
        chat = f"chat{number % CHATS}"
        asked = f"wire:{number}"
        out = Outbound(
            id=f"{asked}#reply",
            key=f"wire:{chat}",
            channel="wire",
            chat_id=chat,
            text=text_of(number),
            in_reply_to=asked,
        )
        await mailbox.put(Post(outbound("wire"), out.key, out.id, out.to_bytes()))


async def main(folder: str, port: str, letters: str) -> None:
    """Deliver until killed; say ``done`` when nothing is left."""
    path = Path(folder)
    fresh = not path.exists()
    mailbox = EmbeddedMailbox(path)
    async with asyncio.TaskGroup() as group:
        group.create_task(mailbox.serve())
        await mailbox.ready()
        if fresh:
            await put_all(mailbox, int(letters))
        async with SendLog(path, "wire") as send_log:
            delivery = OutboundSender(
                channel=Wire(int(port)),
                mailbox=mailbox,
                send_log=send_log,
                limiter=FreeLimiter(),
                workspace=path,
                state=path / "state",
                group=group,
            )
            group.create_task(delivery.run())

            async def empty() -> bool:
                return not (await mailbox.depths())[outbound("wire")].count

            await until(empty, 600)
            print("done", flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
