"""Checks the queue: whether it answers, what waits in it; a broker's version, clock and certificate."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import durable
from channels.plugins import served
from gateway.app.daemons import DaemonRegistry, Running
from gateway.app.wiring_broker import RepliedChannels, open_mailbox
from gateway.config.settings import Broker, Settings
from gateway.doctor.finding import (
    DISK_CURE,
    GRACE_S,
    LOCAL_S,
    Check,
    Steps,
    bounded,
    findings,
    in_own_loop,
    looked,
    patient,
)
from gateway.errors import MailboxDown, StateInUse
from gateway.outbound.unserved import cure_of, in_words, unserved
from gateway.queue.embedded.mailbox import CURE, left_behind
from gateway.queue.mailbox import Mailbox

if TYPE_CHECKING:
    from gateway.queue.rabbitmq.connection import Link


TLS_S = 8.0
DAYS = 30
RENEW = "renew it on the broker"


async def certificate(broker: Broker) -> list[Check]:
    """Say until when it is valid; nothing without TLS, or where the broker's own check tells why not."""
    if not broker.url.startswith("amqps:"):
        return []
    from gateway.queue.rabbitmq.access import TLS_PORT, TlsFiles

    parts = urlsplit(broker.url)
    files = TlsFiles(broker.ca_file, broker.cert_file, broker.key_file)
    try:
        context = await asyncio.to_thread(files.context)
        async with asyncio.timeout(TLS_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or TLS_PORT, ssl=context)
    except (OSError, TimeoutError, MailboxDown):
        return []
    valid_until = writer.get_extra_info("peercert")["notAfter"]
    writer.transport.abort()
    until = datetime.fromtimestamp(ssl.cert_time_to_seconds(valid_until), UTC)
    return [_judged(until)]


def _judged(until: datetime) -> Check:
    name, now = "certificates", durable.now()
    if until < now:
        return Check(
            name, "fail", f"the broker's certificate was valid until {until:%Y-%m-%d %H:%M} UTC", RENEW
        )
    days = (until - now).days
    text = f"the broker's certificate is valid until {until:%Y-%m-%d}, for {days} days"
    return Check(name, "warn", text, RENEW) if days < DAYS else Check(name, "ok", text)


BROKER_S: Final = 8.0
ANSWERS_S: Final = 5.0
LOOK_S: Final = 0.1
# After a kill the log of a large queue is gone through first.
QUEUE_S: Final = 60.0
BROKER_CURE: Final = "check the broker's log and the network between it and this machine"
# As between this machine and a platform.
APART_S: Final = 30.0
# Older ones lack what quorum queues and streams of events need; see docs/rabbitmq.md.
OLDEST: Final = (3, 10)


DaemonStatus = Callable[[], Awaitable[Mapping[str, Any] | None]]


def steps(settings: Settings, daemon: DaemonStatus, *, local_s: float = LOCAL_S) -> Steps:
    """Look at the queue; ``daemon`` returns what ``status`` shows of a running daemon."""
    yield _of_the_queue(settings, daemon, patient(QUEUE_S, local_s))
    if settings.broker.embedded:
        return
    yield looked("embedded queue", lambda: of_left(settings.state), settings.workspace, within_s=local_s)
    asking = in_own_loop("broker", lambda: _inquired(settings), within_s=QUEUE_S)
    asked = f"RabbitMQ at {settings.broker.shown_url}"
    yield findings("broker version", asking, within_s=QUEUE_S, asked=asked, cure=BROKER_CURE, grace_s=GRACE_S)


def of_left(state: Path) -> Iterator[Check]:
    """Say what an embedded queue still holds beside the broker that is in use."""
    if left := asyncio.run(left_behind(state)):
        yield Check("embedded queue", "fail", left, CURE)


async def _of_the_queue(settings: Settings, daemon: DaemonStatus, within_s: float) -> list[Check]:
    """Open the queue, or ask the daemon that holds it.

    In a loop of its own: what opens it waits for locks and files, and so does what ends that.
    """
    embedded = settings.broker.embedded
    opening = in_own_loop("queue", lambda: _queue(settings), within_s=within_s)
    folder = settings.state
    asked, cure = (f"the queue in {folder}", DISK_CURE) if embedded else (_name_of(settings), BROKER_CURE)
    found = await bounded(
        "broker", opening, within_s=within_s, asked=asked, cure=cure, where=folder, grace_s=GRACE_S
    )
    if not isinstance(found, Running):
        return [found] if isinstance(found, Check) else found
    asking = asyncio.create_task(_status(daemon), name="doctor daemon")
    holder = f"the daemon with pid {found.pid}"
    cure = "chat-gateway status; if that hangs, too, restart the gateway"
    status = await bounded("broker", asking, within_s=within_s, asked=holder, cure=cure)
    if isinstance(status, Check):
        return [status]
    if status is None and found.url:
        return [
            Check("broker", "fail", f"{_name_of(settings)}, in use by {holder}, which does not answer", cure)
        ]
    return _of_queue(f"{_name_of(settings)}, in use by {holder}", status)


async def _status(daemon: DaemonStatus) -> Mapping[str, Any] | None:
    return await daemon()


async def _inquired(settings: Settings) -> list[Check]:
    told = await certificate(settings.broker)
    return [*await _broker(settings), *told]


def _name_of(settings: Settings) -> str:
    return "embedded queue" if settings.broker.embedded else f"RabbitMQ at {settings.broker.shown_url}"


async def _queue(settings: Settings) -> list[Check] | Running:
    what = _name_of(settings)
    mailbox = open_mailbox(settings, reports=False)
    serve = asyncio.create_task(mailbox.serve(), name="doctor mailbox")
    ready = asyncio.create_task(mailbox.ready(), name="doctor ready")
    try:
        await _first_answer(mailbox, serve, ready)
        if ready.done() and ready.exception() is not None:
            # ``serve`` ends with the reason.
            await asyncio.wait((serve,), timeout=BROKER_S)
        if serve.done():
            serve.result()
        if not ready.done():
            health = mailbox.health()
            fault = health.error if health.hint else f"no answer within {BROKER_S:g} s"
            return [
                Check("broker", "fail", f"{what}: {fault}", health.hint or "start it, or correct broker.url")
            ]
        depths = await mailbox.depths(RepliedChannels(settings.state).names())
    except StateInUse:
        registry = DaemonRegistry(settings.workspace)
        if running := registry.running():
            return running[0]
        if ending := registry.ending():
            return [Check("broker", "ok", f"{what}: held by process {ending[0].pid}, which is shutting down")]
        raise
    finally:
        for task in (serve, ready):
            task.cancel()
        await asyncio.gather(serve, ready, return_exceptions=True)
    queues = {box: depth.as_dict() for box, depth in depths.items()}
    return _of_queue(what, {"queues": queues, "unserved": unserved(depths, served(settings.channels))})


def _of_queue(what: str, status: Mapping[str, Any] | None) -> list[Check]:
    """Judge what waits, as ``status`` has it; without it nothing is known but that the queue is there."""
    if status is None or status["queues"] is None:
        return [Check("broker", "ok", what)]
    now = durable.now()
    checks = [
        Check("broker", "warn", in_words(row, now), cure_of(str(row["channel"])))
        for row in status["unserved"]
    ]
    counts = {box: depth["count"] for box, depth in status["queues"].items()}
    if parked := counts.pop("parked", 0):
        letters = "1 message is" if parked == 1 else f"{parked} messages are"
        checks.append(Check("broker", "warn", f"{what}: {letters} parked", "chat-gateway parked list"))
    return checks or [
        Check("broker", "ok", f"{what}: {(n := sum(counts.values()))} message{'s' * (n != 1)} waiting")
    ]


async def _first_answer(mailbox: Mailbox, *tasks: asyncio.Task[None]) -> None:
    """Wait until it is ready or has failed once: it would go on trying for ever."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BROKER_S):
            while not mailbox.health().hint and not any(task.done() for task in tasks):
                await asyncio.wait(tasks, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)


async def _broker(settings: Settings) -> list[Check]:
    """Ask the broker for its version and its time; nothing where the queue's own check tells why not."""
    from gateway.queue.rabbitmq.access import TlsFiles
    from gateway.queue.rabbitmq.connection import AccessRefused, Link

    broker = settings.broker
    files = TlsFiles(broker.ca_file, broker.cert_file, broker.key_file)
    title, ahead_s, why = f"{broker.name} doctor", None, ""
    try:
        link = await Link.open(broker.url, title=title, heartbeat_s=10, tls=files, timeout_s=ANSWERS_S)
    except (MailboxDown, TimeoutError):
        return []
    try:
        async with asyncio.timeout(ANSWERS_S):
            ahead_s = await _ahead_s(link, f"{broker.name}.clock.{durable.new_id()}")
    except AccessRefused:
        why = "this user may make no queue of its own, by which it is asked"
    except TimeoutError:
        why = f"it did not answer within {ANSWERS_S:g} s"
    except MailboxDown as error:
        why = str(error)
    finally:
        await link.close()
    return [of_version(link.version), of_clock(ahead_s, why)]


async def _ahead_s(link: Link, queue: str) -> float | None:
    """Return by how many seconds this machine's clock is ahead of the broker's; None where it does not tell.

    AMQP shows the broker's clock in one place, the ``x-death`` header of a message that expired.
    """
    from gateway.queue.rabbitmq.connection import Sending, headers_of

    channel = await link.channel(confirms=True)
    moved = f"{queue}.moved"
    await channel.declare_queue(moved, exclusive=True)
    to_moved = {"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": moved}
    await channel.declare_queue(queue, exclusive=True, arguments=to_moved)
    came: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def take(message: object) -> None:
        came.set_result(message)

    await channel.consume(moved, take, no_ack=True)
    sent_s = durable.wall_s()
    await channel.publish(Sending("", queue, b"{}", transient=True))
    deaths = headers_of(await came).get("x-death")
    first = deaths[0] if isinstance(deaths, list) and deaths else None
    at = first.get("time") if isinstance(first, dict) else None
    if not isinstance(at, datetime):
        return None
    there_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    # A broker writes whole seconds: the middle of the one it names, and of the time it took.
    return (sent_s + durable.wall_s()) / 2 - (there_s + 0.5)


def of_version(version: str) -> Check:
    """Judge a broker's version as it writes it."""
    oldest = ".".join(map(str, OLDEST))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        text = f"the broker does not report its version; RabbitMQ {oldest} or newer is needed"
        return Check("broker version", "warn", text, "ask its administrator: rabbitmqctl version")
    if (int(numbers[1]), int(numbers[2])) < OLDEST:
        text = f"RabbitMQ {version}; {oldest} or newer is needed"
        return Check("broker version", "fail", text, "update the broker; see docs/rabbitmq.md")
    return Check("broker version", "ok", f"RabbitMQ {version}")


def of_clock(ahead_s: float | None, unasked: str) -> Check:
    """Judge by how many seconds this machine is ahead of its broker; None: that is not known."""
    if ahead_s is None:
        why = unasked or "it does not add timestamps to messages"
        return Check("clock", "ok", f"the broker's time is unknown: {why}")
    if abs(ahead_s) <= APART_S:
        return Check("clock", "ok", f"within {APART_S:g} s of the broker's")
    way = "ahead of" if ahead_s > 0 else "behind"
    cure = "set the clocks of both machines: timedatectl set-ntp true"
    return Check("clock", "warn", f"{abs(ahead_s):.0f} s {way} the broker's", cure)
