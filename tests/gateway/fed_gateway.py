"""A whole gateway on a loop of its own thread, fed with whatever anybody may put into its queues."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aio_pika
import orjson
from pamqp import commands

from gateway.app.application import Application
from gateway.queue.mailbox import INBOUND, Mailbox, Post, Topic, outbound
from session.transcript.key import slot_of
from tests.gateway.delivery_place import Place
from tests.support.foreign import inbound, slot
from tests.support.until import until

T = TypeVar("T")
DEADLINE_S = 60.0
PLATFORM, WEB = outbound("fake"), outbound("web")
BOXES = (INBOUND, WEB, PLATFORM)
TOPICS: tuple[Topic, ...] = ("control", "events")


@dataclass(frozen=True)
class Odd:
    """A message as somebody may send it: where to, its body, its AMQP properties."""

    where: str
    body: bytes
    properties: dict[str, Any] = field(default_factory=dict)


class Gateway:
    """A gateway with model ``echo`` and one platform in memory, kept up until ``close``."""

    def __init__(self, build: Callable[[], Application], folder: Path) -> None:
        self._build, self._folder = build, folder
        self._up: Future[None] = Future()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name="gateway", daemon=True)
        self._thread.start()
        self._up.result(DEADLINE_S)
        self._checks = 0

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        except BaseException as error:  # noqa: BLE001 - the test must hear of it
            if not self._up.done():
                self._up.set_exception(error)

    async def _main(self) -> None:
        self._end = asyncio.Event()
        self.application = self._build()
        self.place = Place(self._folder)
        self.heard: asyncio.Queue[bytes] = asyncio.Queue()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.application.open())
            await stack.enter_async_context(self.place.delivering(self.application.mailbox))
            bodies = await stack.enter_async_context(self.application.mailbox.listen("events"))

            async def hear() -> None:
                async for body in bodies:
                    self.heard.put_nowait(body)

            hearing = asyncio.create_task(hear())
            self._up.set_result(None)
            await self._end.wait()
            hearing.cancel()

    @property
    def mailbox(self) -> Mailbox:
        """The queue."""
        return self.application.mailbox

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the gateway's loop; a gateway that has ended is a failure at once."""
        assert self._thread.is_alive(), "the gateway has ended"
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        while not done.done() and self._thread.is_alive():
            concurrent.futures.wait([done], timeout=0.5)
        assert done.done(), "the gateway has ended"
        return done.result(DEADLINE_S)

    def close(self) -> None:
        """Let it drain and end."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(DEADLINE_S)

    # -- what must hold after every feeding ----------------------------------------------------------

    async def serves(self) -> None:
        """Return when each loop has done what a sound letter asks of it, and nothing is left in a box."""
        self._checks += 1
        name = f"check{self._checks}"
        async with asyncio.timeout(DEADLINE_S):
            await self.mailbox.put(
                Post(INBOUND, f"web:{name}", f"web:{name}", inbound(f"web:{name}", f"web:{name}", name))
            )
            out = {"v": 1, "id": name, "key": "fake:ada", "channel": "fake", "chat_id": "ada", "text": name}
            await self.mailbox.put(Post(PLATFORM, "fake:ada", name, orjson.dumps(out)))
            while not self._tells(await self.heard.get(), f"web:{name}#reply"):
                pass
            await self.place.platform.until(lambda platform: name in platform.texts())
            await self._obeys(f"web:{name}")
            await self._are_empty()

    @staticmethod
    def _tells(body: bytes, event_id: str) -> bool:
        try:
            event = orjson.loads(body)
        except orjson.JSONDecodeError:
            return False
        return isinstance(event, dict) and event.get("id") == event_id

    async def _obeys(self, key: str) -> None:
        # A daemon told of a slot it was not told of before shows that its ear still hears.
        order = {"v": 1, "id": "w", "do": "watch", "slots": [slot_of(key)], "for_s": 30}

        async def obeyed() -> bool:
            await self.mailbox.tell("control", slot_of(key), orjson.dumps(order))
            return self.application.events.watched(key)

        await until(obeyed, DEADLINE_S)

    async def _are_empty(self) -> None:
        async def are_empty() -> bool:
            return not any(
                depth.count for box, depth in (await self.mailbox.depths()).items() if box in BOXES
            )

        await until(are_empty, DEADLINE_S)

    async def parked(self) -> Counter[bytes]:
        """Count the bodies that are set aside."""
        return Counter(each.body for each in await self.mailbox.parked())

    async def sets_aside(self, wanted: Counter[bytes]) -> None:
        """Return when all these bodies are set aside."""
        missing = wanted
        try:
            async with asyncio.timeout(DEADLINE_S / 4):
                while missing := wanted - await self.parked():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"neither parked nor answered: {missing}") from None

    async def replay_and_drop(self) -> None:
        """Put back what is set aside, then drop it; of several under one id without a key none."""
        for work in (self.mailbox.replay, self.mailbox.drop):
            for each in await self.mailbox.parked():
                with suppress(LookupError):
                    await work(each.id, key=each.key)
            await self.serves()


async def put_all(mailbox: Mailbox, odd: Sequence[Odd], number: Callable[[], int]) -> None:
    """Put bodies by our own mailbox, which gives each an id and a key."""
    for each in odd:
        if each.where in TOPICS:
            await mailbox.tell(each.where, 7, each.body)  # type: ignore[arg-type]
        else:
            await mailbox.put(Post(each.where, "web:odd", f"odd:{number()}", each.body))


class Foreign:
    """Another program that publishes on the same broker, with whatever properties."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name

    async def publish(self, odd: Sequence[Odd]) -> None:
        """Publish all, each confirmed."""
        connection = await aio_pika.connect(self._url)
        async with connection:
            channel = await connection.channel()
            raw = await channel.get_underlay_channel()
            for each in odd:
                exchange, route = self._place(each.where)
                await raw.basic_publish(
                    each.body,
                    exchange=exchange,
                    routing_key=route,
                    properties=commands.Basic.Properties(**each.properties),
                )

    def _place(self, where: str) -> tuple[str, str]:
        match where:
            case "inbound":
                return f"{self._name}.inbound", slot("web:odd")
            case "control":
                return f"{self._name}.control", ""
            case "events":
                return f"{self._name}.events", "007"
            case "parked":
                return "", f"{self._name}.parked"
            case box:
                return f"{self._name}.outbound", box.partition(".")[2]
