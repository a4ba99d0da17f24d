"""A whole run: batch after batch, until so many kills are done or a guarantee broke."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import GatewayError
from tests.chaos.batch import Batch, Result, Team, template
from tests.chaos.queues import Place, require_empty
from tests.chaos.stub_model import StubModel
from tests.support.broker import BIN, Broker

BATCH_KILLS = 200


class Stopped(GatewayError):
    """A batch could not go on; what it was is kept, and the hint runs it again."""


class NotHere(GatewayError):
    """What a run needs is not on this machine; nothing was started."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do.

    ``url``: a broker given for this; empty: a private one, where ``rabbitmq`` is wanted. ``keep``: leave the
    folder of every batch, not only that of one that failed. ``platform``: over which some people write, or
    ``none``. ``workers``: of the one gateway; 0: it has none.
    """

    kills: int
    rabbitmq: bool
    daemons: int
    seed: int
    url: str = ""
    keep: bool = False
    platform: str = "telegram"
    workers: int = 0

    @property
    def words(self) -> str:
        """The options that say what runs, as they are typed."""
        where = f"--url {self.url}" if self.url else f"--broker {'rabbitmq' if self.rabbitmq else 'embedded'}"
        workers = f" --workers {self.workers}" if self.workers else ""
        return f"{where} --daemons {self.daemons}{workers} --platform {self.platform}"


@dataclass
class Outcome:
    """What came of it; ``folder`` is what stays, None where nothing does."""

    results: list[Result]
    folder: Path | None

    @property
    def failed(self) -> Result | None:
        """The batch that broke a guarantee."""
        return next((result for result in self.results if result.account.broken), None)


def replay(plan: Plan, seed: int, kills: int) -> str:
    """Return the line that runs one batch again."""
    return f"python -m tests.chaos --seed {seed} --kills {kills} {plan.words} --keep"


async def run(plan: Plan, *, told: Callable[[Result], None]) -> Outcome:
    """Do the plan; ``told`` hears of each batch.

    Raises:
        NotHere: RabbitMQ is not installed.
        NotOurs: the broker that was given holds queues of somebody.
        Stopped: a batch could not be done.
    """
    # The kit's own client would complain of every connection that is broken here.
    for library in ("aio_pika", "aiormq", "asyncio", "httpx"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    results: list[Result] = []
    folder = Path(tempfile.mkdtemp(prefix="chat-gateway-chaos-"))
    try:
        async with _broker(plan) as (url, broker), template() as forks, StubModel() as model:
            left, seed = plan.kills, plan.seed
            while left > 0:
                kills = min(left, BATCH_KILLS)
                place = Place(url, f"chaos-{seed}") if url else None
                below = folder / f"seed-{seed}"
                batch = Batch(
                    below,
                    seed=seed,
                    kills=kills,
                    team=Team(plan.daemons, plan.platform != "none", plan.workers),
                    forks=forks,
                    model=model,
                    place=place,
                    broker=broker,
                )
                try:
                    result = await batch.run()
                except Exception as error:
                    words = f"seed {seed} stopped, its files are in {below}: {error!r}"
                    raise Stopped(words, hint=replay(plan, seed, kills)) from error
                results.append(result)
                told(result)
                if result.account.broken:
                    break
                if not plan.keep:
                    await asyncio.to_thread(shutil.rmtree, below)
                left, seed = left - kills, seed + 1
    except asyncio.CancelledError:
        # Whoever ends it wants none of it.
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        raise
    finally:
        stays = not await asyncio.to_thread(_removed, folder)
    return Outcome(results, folder if stays else None)


def _removed(folder: Path) -> bool:
    """Remove a folder where it is empty; say whether it was."""
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


@asynccontextmanager
async def _broker(plan: Plan) -> AsyncIterator[tuple[str, Broker | None]]:
    """Yield the broker's address, empty for the embedded queue, and the node where it is ours to kill."""
    if plan.url or not plan.rabbitmq:
        for number in range(-(-plan.kills // BATCH_KILLS) if plan.url else 0):
            await require_empty(Place(plan.url, f"chaos-{plan.seed + number}"))
        yield plan.url, None
        return
    if not (BIN / "rabbitmq-server").exists() or shutil.which("epmd") is None:
        raise NotHere(
            "RabbitMQ is not installed on this machine",
            hint="apt-get install rabbitmq-server, or --url amqp://… of a broker set up for this test",
        )
    node = Broker()
    try:
        await asyncio.to_thread(node.__enter__)
        yield node.url, node
    finally:
        await asyncio.to_thread(node.close)
