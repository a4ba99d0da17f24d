"""An adapter is begun anew where it must be, and what is being sent meanwhile comes to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from channels.base import Emit, Kind, Pulse, Site
from channels.errors import ChannelDown, SendNever
from channels.message import Outbound
from channels.tables import Platform
from channels.testing import FakeChannel, FakePlatform
from gateway.inbound.pipeline import Intake
from gateway.outbound.adapters import Adapter, AdapterContext
from gateway.outbound.standing import standing
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import Post
from tests.gateway.delivery_place import BOX, DEADLINE_S, reply, until_empty
from tests.gateway.embedded_place import opened
from tests.support.clock import Clock
from tests.support.guarantee import guarantee
from tests.support.until import until

WITHIN_S = 2.0
# Until a run is up.
START_S = 1.3
EVERY_S = 0.5


class Line:
    """What lies between the platform and whoever receives from it."""

    def __init__(self) -> None:
        self.runs = 0
        self.menus = 0
        # How a round trip ends: it comes back, it never does, it fails, or the whole run does.
        self.now = "sound"


class Receiving(FakeChannel):
    """Beats every half a second, once it is up."""

    def __init__(self, platform: FakePlatform, line: Line, pulse: Pulse, clock: Clock) -> None:
        super().__init__(platform)
        self._line = line
        self._pulse = pulse
        self._clock = clock

    async def run(self, emit: Emit) -> None:
        self._line.runs += 1
        await self._clock.sleep(START_S)
        while True:
            match self._line.now:
                case "sound":
                    self._pulse.beat(within_s=WITHIN_S)
                case "failing":
                    self._pulse.fail("no answer")
                case "silent":
                    await asyncio.Event().wait()
                case "ends":
                    raise ChannelDown("it has ended")
                case "crashes":
                    raise RuntimeError("nobody foresaw it")
            await self._clock.sleep(EVERY_S)


class WithMenu(Receiving):
    """Has a menu of commands, which the platform refuses for good."""

    async def register(self, commands: Mapping[str, str]) -> None:
        self._line.menus += 1
        raise SendNever("invalid command name")


class Rig:
    """One adapter over a real queue and send log; time passes when the test says so."""

    def __init__(
        self, workspace: Path, mailbox: EmbeddedMailbox, channel: type[Receiving] = Receiving
    ) -> None:
        self._channel = channel
        self.clock = Clock()
        self.mailbox = mailbox
        self.platform = FakePlatform("ada")
        self.line = Line()
        self.pulse = Pulse(self.clock, steady=self.clock.monotonic)
        context = AdapterContext(
            mailbox=mailbox,
            intake=Intake(mailbox),
            workspace=workspace,
            max_mb=1,
            media_timeout_s=5.0,
            turn_timeout_s=30.0,
            commands={},
        )
        self.adapter = Adapter(
            Kind("fake", Platform, ""),
            Platform(enabled=True, token=SecretStr("t"), stream=False),
            context,
            build=self._build,
            pulse=self.pulse,
            sleep=self.clock.sleep,
        )

    def _build(self, kind: Kind, table: Platform, site: Site) -> FakeChannel:
        return self._channel(self.platform, self.line, site.pulse, self.clock)

    async def pass_by(self, seconds: float) -> None:
        """Let time pass, step by step; whoever is woken does what it can do at once."""
        for _ in range(round(10 * seconds)):
            self.clock.forward(0.1)
            for _ in range(10):
                await asyncio.sleep(0)

    async def runs(self, number: int) -> None:
        """Let time pass until the run with this number has begun."""
        async with asyncio.timeout(DEADLINE_S):
            while self.line.runs < number:
                self.clock.forward(0.1)
                await asyncio.sleep(0.005)

    async def put(self, out: Outbound) -> None:
        await self.mailbox.put(Post(BOX, out.key, out.id, out.to_bytes()))


@asynccontextmanager
async def rig(workspace: Path, channel: type[Receiving] = Receiving) -> AsyncIterator[Rig]:
    """Run an adapter that is up."""
    async with opened(workspace / "state") as mailbox:
        made = Rig(workspace, mailbox, channel)
        running = asyncio.create_task(made.adapter.run(), name="adapter")
        try:
            await made.runs(1)
            await made.pass_by(START_S)
            assert made.adapter.part()["up"]
            yield made
        finally:
            running.cancel()
            await asyncio.wait([running])


async def test_a_new_run_has_the_time_that_it_needs(tmp_path: Path) -> None:
    """After an outage of any length it comes up at the first try, and until then nobody calls it well."""
    async with rig(tmp_path) as on:
        on.line.now = "silent"
        await on.pass_by(WITHIN_S + 1)
        await until(lambda: not on.adapter.part()["up"])
        on.clock.forward(hours=1)
        on.line.now = "sound"
        await on.runs(2)
        await on.pass_by(START_S - 0.1)
        part = on.adapter.part()
        assert not part["up"]
        assert part["error"].startswith("no contact for")
        assert part["last_round_trip"] is not None

        await on.pass_by(0.2)
        assert on.adapter.part()["up"]
        await on.pass_by(10)
        assert on.line.runs == 2


async def test_sending_goes_on_while_receiving_fails(tmp_path: Path) -> None:
    """An adapter that says what is wrong tries again by itself: nothing is torn down."""
    async with rig(tmp_path) as on:
        on.line.now = "failing"
        await on.pass_by(4 * WITHIN_S)
        await on.put(reply(1, "hello"))
        await until_empty(on.mailbox)

        assert on.adapter.part()["error"] == "no answer"
        assert on.line.runs == 1
        assert on.platform.texts() == ["hello"]


@guarantee("once", "The restart or the end of an adapter does not cut off a call to its platform.")
@pytest.mark.parametrize("how", ["silent", "ends", "crashes"])
async def test_a_new_run_cuts_off_no_call(tmp_path: Path, how: str) -> None:
    """It waits for the calls under way, begins none meanwhile, and is shown as down by then."""
    held = asyncio.Event()
    async with rig(tmp_path) as on:
        on.platform.fail(held)
        await on.put(reply(1, "a" * 50))
        await on.platform.until(lambda platform: platform.hanging == 1)
        on.line.now = how
        await on.pass_by(WITHIN_S + 1.5)
        await until(lambda: not on.adapter.part()["up"])
        await on.put(reply(2, "later", chat="bob"))
        await on.mailbox.depths()
        assert on.platform.hanging == 1
        assert on.line.runs == 1

        held.set()
        on.line.now = "sound"
        await until(lambda: on.platform.texts() == ["a" * 40])
        await on.runs(2)
        await until_empty(on.mailbox)

    assert on.platform.texts("ada") == ["a" * 40, "a" * 10]
    assert on.platform.texts("bob") == ["later"]
    assert len(on.platform.chunks) == 3


async def test_a_gateway_that_ends_meanwhile_sends_what_is_left(tmp_path: Path) -> None:
    """It receives no more, and the next run sends the rest."""
    held = asyncio.Event()
    async with rig(tmp_path) as on:
        on.platform.fail(held)
        await on.put(reply(1, "a" * 50))
        await on.platform.until(lambda platform: platform.hanging == 1)
        on.line.now = "ends"
        await on.pass_by(2 * EVERY_S)
        await until(lambda: not on.adapter.part()["up"])
        on.adapter.stop_receiving()
        held.set()
        async with asyncio.timeout(DEADLINE_S):
            while on.platform.texts() != ["a" * 40, "a" * 10]:
                on.clock.forward(0.1)
                await asyncio.sleep(0.005)

        assert on.line.runs == 1


@guarantee("once", "The restart or the end of an adapter does not cut off a call to its platform.")
async def test_a_call_under_way_at_the_end_may_end(tmp_path: Path) -> None:
    """A gateway that ends waits for it, and notes what came of it."""
    held = asyncio.Event()
    async with opened(tmp_path / "state") as mailbox:
        made = Rig(tmp_path, mailbox)
        running = asyncio.create_task(made.adapter.run(), name="adapter")
        await made.runs(1)
        made.platform.fail(held)
        await made.put(reply(1, "hello"))
        await made.platform.until(lambda platform: platform.hanging == 1)
        made.adapter.stop_receiving()
        running.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        held.set()
        await asyncio.wait([running])
        assert made.platform.texts() == ["hello"]
        await until_empty(mailbox)


async def test_a_lease_that_cannot_be_had_ends_nothing_else(tmp_path: Path) -> None:
    """The file cannot be opened: that is shown, and tried again until it can be."""
    lease = tmp_path / "state" / "fake.lease"
    lease.mkdir(parents=True)
    async with opened(tmp_path / "state") as mailbox:
        made = Rig(tmp_path, mailbox)
        running = asyncio.create_task(made.adapter.run(), name="adapter")
        try:
            await until(lambda: running.done() or made.adapter.part()["error"].startswith("state/fake.lease"))
            assert not running.done()
            assert standing(tmp_path / "state", "fake")["up"] is False

            lease.rmdir()
            await made.runs(1)
            await made.pass_by(START_S)
            assert made.adapter.part()["up"]
        finally:
            running.cancel()
            await asyncio.wait([running])


async def test_a_menu_that_is_refused_for_good_is_shown_and_not_tried_again(tmp_path: Path) -> None:
    async with rig(tmp_path, WithMenu) as on:
        await until(lambda: "menu" in on.adapter.part()["error"])
        await on.pass_by(60)
        part = on.adapter.part()

        assert part["up"]
        assert part["error"] == "the menu of commands was refused: invalid command name"
        assert on.line.menus == on.line.runs == 1
        await on.put(reply(1, "hello"))
        await until_empty(on.mailbox)
