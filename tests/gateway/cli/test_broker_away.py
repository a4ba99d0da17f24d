"""A broker that is not there: a daemon says so once with the cure, a one-shot verb in its error alone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from structlog.testing import capture_logs

from gateway.errors import Unreachable
from gateway.queue.rabbitmq.mailbox import LOST_HINT
from tests.gateway.on_rabbit import serving

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
