"""What all tests share: one private RabbitMQ node, names on it that no other test uses, one profile."""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import os
import shutil
import signal
import ssl
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import structlog
from hypothesis import HealthCheck, settings

from gateway.app.logging import LOUD
from tests.support import harness, ordinary_user, prepared
from tests.support.broker import BIN, Broker
from tests.support.everyday import is_slow
from tests.support.matrices import left_to_chaos

# A machine that is busy takes its time over an example, and over making one up: neither is a failure. The
# same examples are drawn each time, so that a change fails for what it does; `make chaos-all` draws new ones.
settings.register_profile("new", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("new"), derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# What a shell starts in the background is deaf to Ctrl-C, and so would be every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The same holds for the end of a terminal, where nohup starts the tests.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A traceback with every local takes ten seconds of a busy processor for each error that a test provokes.
structlog.get_config()["processors"][-1].exception_formatter = structlog.dev.plain_traceback

_create_ssl_context = httpx.create_ssl_context


@functools.cache
def _shared_ssl_context(verify: Any, cert: Any, trust_env: bool, *_environment: str | None) -> ssl.SSLContext:
    return _create_ssl_context(verify, cert, trust_env)


def _ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    """Give the clients of a process one context: each would take 30 ms to read all certificates again."""
    return _shared_ssl_context(
        verify, cert, trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    )


httpx._transports.default.create_ssl_context = _ssl_context

# What is collected lives as long as its process: each look at all of it would take a fifth of a second.
gc.disable()

# They wait, or work, for many seconds at a time: begun last, the other workers would wait for one of them.
LONGEST = (
    "system/test_ordinary_user.py",
    "gateway/http/test_http_document.py",
    "system/test_http_idle.py",
    "system/test_workers.py",
    "system/test_strays.py",
    "system/test_onboard.py",
    "system/test_rolling.py",
    "system/test_backup.py",
    "system/test_documented_commands.py",
    "system/test_model_requests.py",
    "system/test_model_failures.py",
    "system/test_faults.py",
    "system/test_compaction.py",
    "system/test_service_verbs.py",
    "system/test_broker_rights.py",
    "system/test_takeover.py",
    "system/test_telegram.py",
    "system/test_discord.py",
    "system/test_rendering.py",
    "system/test_settings.py",
    "system/test_job_answers.py",
    "session/interchange/test_nanobot.py",
    "session/tools/test_web_fetch.py",
    "gateway/queue/test_rabbitmq_faults.py",
    "gateway/queue/test_arbitrary_letters.py",
    "test_install_packages.py",
)

# What some tests look at depends on it, and each may set it as the program does.
USUAL_MASK = 0o022
os.umask(USUAL_MASK)

_numbers = itertools.count(1)
_used: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test-fast` and `make test` leave out or root does; begin with what takes longest."""
    for item in left_to_chaos(items):
        item.add_marker(pytest.mark.chaos)
    items[:] = _longest_first(items)
    for item in items:
        if is_slow(item):
            item.add_marker(pytest.mark.slow)
        if os.geteuid() == 0 and item.get_closest_marker(ordinary_user.MARK):
            item.add_marker(pytest.mark.skip("root: tests/system/test_ordinary_user.py runs it"))


def _longest_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Begin every second worker's share with files of LONGEST, dealt out in turn.

    pytest-xdist gives each worker one run of neighbouring tests; the shares between stay short tests, which
    use the processor while the long ones wait.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    short = []
    begun = shares[::2]
    for item in items:
        place = next((at for at, name in enumerate(LONGEST) if item.path.as_posix().endswith(name)), None)
        if place is None:
            short.append(item)
        else:
            begun[place % len(begun)].append(item)
    size = len(items) / workers
    for number, share in enumerate(shares, 1):
        # Rounded up or down as the shares are cut.
        room = round(number * size) - round((number - 1) * size) - len(share)
        share.extend(short[: max(0, room)])
        del short[: max(0, room)]
    return [item for share in shares for item in share] + short


def pytest_collection_finish() -> None:
    """Leave the tests themselves, and all that they import, out of every look of the garbage collector."""
    gc.collect()
    gc.freeze()
    # What the tests leave is little beside what each look at it costs.
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


@pytest.fixture(autouse=True)
def _given_back() -> Iterator[None]:
    """Give back what a test has set up of its process.

    No other one sees the level, the stream or the warnings of its log, nor the mask of ``gateway.__main__``.
    """
    yield
    os.umask(USUAL_MASK)
    if structlog.is_configured():
        structlog.reset_defaults()
        root = logging.getLogger()
        root.handlers[:] = [one for one in root.handlers if type(one).__module__ != "gateway.app.logging"]
        logging.captureWarnings(capture=False)
        for name in LOUD:
            logging.getLogger(name).filters.clear()
            logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture(scope="session", autouse=True)
def _prepared_daemons() -> Iterator[None]:
    """Daemons of tests are forked from a process of this worker that has done their imports."""
    harness.FORKS = True
    yield
    prepared.end_servers()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """One node for all tests that neither kill nor configure it."""
    if not (BIN / "rabbitmq-server").exists() or shutil.which("epmd") is None:
        pytest.fail("install rabbitmq-server (apt-get install rabbitmq-server), or run: make test")
    with Broker() as node:
        yield node


@pytest.fixture
def broker_name(broker: Broker) -> Iterator[str]:
    """A prefix of queue names for one test; its queues are deleted later, with those of its neighbours."""
    name = f"t{next(_numbers)}"
    yield name
    _used.append(name)
    if len(_used) >= 12:
        broker.delete_queues(_used)
        _used.clear()
