"""A broker that refuses is told in words that name what to change, and by `doctor` without a long silence."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import uvloop
from structlog.testing import capture_logs

from gateway.config.settings import Settings
from gateway.doctor.broker import BROKER_S
from gateway.doctor.checks import examine
from gateway.doctor.finding import Check
from gateway.errors import MailboxDown, Unreachable
from gateway.queue.rabbitmq.access import refusal, refusal_of
from gateway.queue.rabbitmq.broker import LOST_HINT
from gateway.queue.rabbitmq.connection import Link, plain_words
from tests.gateway.on_rabbit import serving
from tests.support import ports
from tests.support.broker import Broker


async def refused(url: str) -> MailboxDown:
    with pytest.raises(MailboxDown) as caught:
        await declare(url)
    return caught.value


async def declare(url: str) -> None:
    link = await Link.open(url, title="test", heartbeat_s=10)
    try:
        await (await link.channel()).declare_exchange("anything", "topic")
    finally:
        await link.close()


def login(broker: Broker, user: str, password: str) -> str:
    return broker.url.replace("guest:guest", f"{user}:{password}")


async def test_a_wrong_password(broker: Broker) -> None:
    """The user is named, the password is not, and the command is given that sets it anew."""
    error = await refused(login(broker, "guest", "planted-secret"))

    assert str(error).startswith("the broker refuses user 'guest', or the password")
    assert "rabbitmqctl change_password guest PASSWORD" in error.hint
    assert "planted-secret" not in f"{error}{error.hint}"


async def test_a_right_that_is_missing(broker: Broker, broker_name: str) -> None:
    """Without any a user may log in and no more; else what may not be declared is named, and where."""
    user = f"outsider-{broker_name}"
    broker.ctl("add_user", user, "pw")
    outside = await refused(login(broker, user, "pw"))
    broker.ctl("set_permissions", user, "^$", ".*", ".*")
    error = await refused(login(broker, user, "pw"))

    assert str(outside) == f"user '{user}' may not use virtual host '/', or there is none of that name"
    assert f"rabbitmqctl set_permissions -p / {user} '.*' '.*' '.*'" in outside.hint
    assert str(error) == f"user '{user}' may not use exchange 'anything' in virtual host '/'"
    assert "set_permissions -p /" in error.hint


@pytest.mark.parametrize("said", ["CONNECTION_FORCED - broker forced", "Connect call failed", "", "refused"])
def test_other_troubles_keep_their_words(said: str) -> None:
    """What is no refusal is none."""
    assert refusal(said, "amqp://guest:guest@host/") is None


async def look(workspace: Path, url: str, told: list[str]) -> Check:
    settings = Settings.model_validate({"workspace": workspace, "broker": {"url": url}})
    async with asyncio.timeout(BROKER_S):
        async for check in examine(settings, tell=told.append):
            if check.name == "broker":
                return check
    raise AssertionError("no word of the broker")


async def test_doctor_ends_at_the_first_refusal(tmp_path: Path, broker: Broker) -> None:
    """It says that it asks, and long before its own limit what is wrong and the cure."""
    told: list[str] = []
    for url, word in (
        (login(broker, "guest", "wrong"), "rabbitmqctl change_password guest"),
        (f"{broker.url}nosuch", "rabbitmqctl add_vhost nosuch"),
    ):
        found = await look(tmp_path, url, told)
        assert (found.level, word in found.cure) == ("fail", True), found
    with ports.KeptPort() as port:
        found = await look(tmp_path, f"amqp://127.0.0.1:{port}/", told)

    assert (found.level, found.cure) == ("fail", "start the broker, or correct broker.url")
    assert told == [f"asking the broker, {BROKER_S:g} s at most …"] * 3


def test_a_refusal_that_points_at_itself_is_read() -> None:
    """The client's error came from the alert, and the alert from the error: one look at each."""
    alert = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required")
    alert.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    around, other = ConnectionError("it ended"), ConnectionError("it ended as well")
    around.__cause__, other.__cause__ = other, around

    ended = refusal_of(around)
    other.__cause__, alert.__context__ = alert, around
    refused = refusal_of(around)

    assert ended is None
    assert refused is not None
    assert refused.text.endswith("that there is none: tlsv13 alert certificate required")


def test_a_server_that_hangs_up_at_once_is_one_that_is_away() -> None:
    """As what stands before a broker does while that dies: whoever starts meanwhile waits, and goes on."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        async def opened() -> list[MailboxDown]:
            # Many at once: some of them hear of the end before they have listened.
            url = f"amqp://guest:guest@127.0.0.1:{server.getsockname()[1]}/"
            return await asyncio.gather(*(refused(url) for _ in range(100)))

        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            # The loop of a daemon.
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                errors = runner.run(opened())
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()

    # Which word one hears, that it was reset, closed or hung up on, is a matter of moments.
    assert len(errors) == 100
    assert all(re.search("hung up|reset|closed", str(error)) for error in errors), set(map(str, errors))


def test_what_the_library_cancelled_is_told_in_words() -> None:
    """It does that to whoever waits on a connection that ends, and may hand it on as the cause."""
    assert plain_words(asyncio.CancelledError(), "amqp://guest:planted@host") == "the connection was lost"


NOBODY = "amqp://me:very-secret@127.0.0.1:1/"


async def told_of(**options: object) -> list[dict[str, object]]:
    """Serve a mailbox until it has found out; return what the log said of it at warning."""
    with capture_logs() as logged:
        async with serving(NOBODY, "chat", **options) as mailbox, asyncio.timeout(20):
            while "Connect" not in mailbox.health().error:
                await asyncio.sleep(0.01)
    return [dict(line) for line in logged if line["log_level"] == "warning"]


async def test_a_daemon_logs_once_that_its_broker_is_away_and_what_to_do() -> None:
    """The key of the configuration is named; the password is not."""
    (line,) = await told_of()

    assert (line["event"], line["hint"]) == ("broker.lost", LOST_HINT)
    assert "broker.url" in LOST_HINT
    assert "very-secret" not in str(line)


async def test_who_says_it_himself_has_it_not_logged() -> None:
    """Nothing is said at warning; the health tells why."""
    assert await told_of(reports=False) == []


def test_a_verb_without_a_broker_says_so_in_its_error_alone(tmp_path: Path) -> None:
    """Two lines on stderr, none of them the log's, and exit 69."""
    code = (
        "import sys\nfrom gateway.cli import attach\nattach.OPEN_WITHIN_S = 0.5\n"
        "from gateway.__main__ import main\n"
        f"sys.exit(main(['--workspace', {str(tmp_path)!r}, 'parked', 'list']))"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CHAT_GATEWAY_")}

    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean | {"CHAT_GATEWAY_BROKER__URL": NOBODY, "HOME": str(tmp_path)},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == Unreachable.exit_code
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["error", "try"]
