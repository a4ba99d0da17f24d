"""The log: one form for all, on stderr, and no secret in it."""

from __future__ import annotations

import asyncio
import errno
import gc
import io
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import structlog

from gateway.app import logging as logs
from gateway.config.load import load
from gateway.config.settings import Settings

SECRET = "123456789:AAF-abc_defghijklmnopqrstuvwxyz12345"


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Give the process its logging back; what earlier tests left for the collector complains before."""
    gc.collect()
    hooks = sys.excepthook, sys.unraisablehook, threading.excepthook
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    sys.excepthook, sys.unraisablehook, threading.excepthook = hooks
    root.handlers[:], root.level = handlers, level


def settings(form: str, level: str = "info") -> Settings:
    return load(
        Path(os.devnull),
        None,
        {
            "CHAT_GATEWAY_LOG__FORMAT": form,
            "CHAT_GATEWAY_LOG__LEVEL": level,
            "CHAT_GATEWAY_CHANNELS__TELEGRAM__TOKEN": SECRET,
        },
    )


S = TypeVar("S", bound=io.StringIO)


def logging_to(stream: S, form: str = "json", level: str = "info", **more: str) -> S:
    logs.setup(settings(form, level), stream=stream, **more)
    return stream


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


class _Leaky:
    def __repr__(self) -> str:
        return f"<client {SECRET}>"


def _fail() -> None:
    raise RuntimeError(f"refused: {SECRET}")


@pytest.mark.parametrize("form", ["console", "json"])
def test_no_secret_leaves_by_any_way(form: str) -> None:
    """Events, values, tracebacks, library records, warnings, threads, loops, finalizers, uncaught errors."""
    stream = logging_to(io.StringIO(), form)
    # pytest's own handlers do not bear what follows.
    root = logging.getLogger()
    root.handlers[:] = [
        handler for handler in root.handlers if type(handler).__module__ == "gateway.app.logging"
    ]
    ours, theirs = structlog.get_logger(), logging.getLogger("some.library")

    ours.info(
        "token.shown", text=f"a {SECRET} b", data=SECRET.encode(), nested={"x": [SECRET]}, thing=_Leaky()
    )
    structlog.contextvars.bind_contextvars(bound=SECRET)
    try:
        _fail()
    except RuntimeError as error:
        ours.exception("call.failed")
        ours.error("call.failed", exc_info=error)
        theirs.exception("library failed with %s", SECRET)
        sys.excepthook(RuntimeError, error, None)
    structlog.contextvars.clear_contextvars()
    theirs.warning("badly formatted %d", SECRET)
    logging.getLogger("LiteLLM").error("LiteLLM said %s", SECRET)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(f"deprecated {SECRET}", stacklevel=1)
    thread = threading.Thread(target=_fail, name="feeder")
    thread.start()
    thread.join()
    _drop_a_failed_finalizer()

    lines = stream.getvalue()
    assert SECRET not in lines
    assert SECRET.partition(":")[2] not in lines
    assert lines.count("***") >= 14
    for words in ("token.shown", "refused: ***", "deprecated ***", "thread.failed", "finalizer.failed"):
        assert words in lines
    assert "LiteLLM said ***" in lines


def _drop_a_failed_finalizer() -> None:
    class Fails:
        def __del__(self) -> None:
            _fail()

    Fails()
    gc.collect()


async def test_an_error_that_nobody_awaited_is_logged_clean() -> None:
    """The loop's own complaint goes the same way."""
    stream = logging_to(io.StringIO())
    loop = asyncio.get_running_loop()
    logs.catch_loop_errors(loop)

    future = loop.create_future()
    future.set_exception(RuntimeError(SECRET))
    del future
    gc.collect()
    loop.set_exception_handler(None)

    (event,) = [event for event in events(stream) if event["event"] == "loop.error_caught"]
    assert event["level"] == "error"
    assert event["exception"].endswith("RuntimeError: ***")


def test_json_has_one_object_per_line_with_time_in_utc() -> None:
    """Every line stands alone, whatever the message holds."""
    stream = logging_to(io.StringIO())

    structlog.get_logger().info("turn.ended", key="cli:a\nb", took_s=0.5, bad="\ud800", number={1: 2})
    logging.getLogger("library").warning("two\nlines")

    first, second = events(stream)
    assert list(first)[:3] == ["timestamp", "level", "event"]
    assert first["timestamp"].endswith("Z")
    assert (first["event"], first["key"], first["took_s"]) == ("turn.ended", "cli:a\nb", 0.5)
    assert (second["level"], second["event"], second["logger"]) == ("warning", "two\nlines", "library")


def test_libraries_are_quiet_and_cannot_write_by_themselves() -> None:
    """A loud library is heard from warnings on, and a handler that it adds later sees nothing."""
    stream, its_own = logging_to(io.StringIO(), level="debug"), io.StringIO()

    for name in ("httpx", "LiteLLM", "aiormq"):
        logger = logging.getLogger(name)
        handler = logging.StreamHandler(its_own)
        logger.addHandler(handler)
        # Some libraries do so when they are imported.
        logger.setLevel(logging.DEBUG)
        logger.info("GET /bot%s/getMe", SECRET)
        logger.warning("slow")
        logger.removeHandler(handler)

    assert its_own.getvalue() == ""
    assert [line["event"] for line in events(stream)] == ["slow"] * 3


def test_the_level_holds_for_us_and_for_libraries() -> None:
    """Below the level nothing is written; one-shot commands raise it."""
    stream = logging_to(io.StringIO(), level="debug", at_least="warning")

    structlog.get_logger().info("quiet.kept")
    logging.getLogger("library").info("quiet")
    structlog.get_logger().warning("loud.heard")

    assert [line["event"] for line in events(stream)] == ["loud.heard"]


def test_auto_is_json_unless_a_person_watches() -> None:
    """Only a terminal gets the console form."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    plain, terminal = io.StringIO(), Terminal()
    for stream in (plain, terminal):
        logging_to(stream, "auto")
        structlog.get_logger().info("turn.ended")

    assert plain.getvalue().startswith('{"timestamp"')
    assert not terminal.getvalue().startswith("{")
    assert "turn.ended" in terminal.getvalue()


def test_a_second_setup_replaces_the_first() -> None:
    """Nothing is written twice."""
    first, second = (logging_to(io.StringIO()) for _ in range(2))

    structlog.get_logger().info("turn.ended")
    logging.getLogger("library").warning("careful")
    logging.getLogger("httpx").warning("careful")

    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 3


def test_a_full_disk_behind_stderr_ends_nothing() -> None:
    """A line that cannot be written is lost; the turn that logged it goes on, and so does the logs."""

    class Full(io.StringIO):
        refused = 0

        def write(self, text: str) -> int:
            if self.refused < 2:
                self.refused += 1
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(text)

    stream = logging_to(Full())

    structlog.get_logger().info("turn.ended", id="first")
    logging.getLogger("library").warning("second")
    structlog.get_logger().info("turn.ended", id="third")

    assert stream.refused == 2
    assert ["third" in line for line in stream.getvalue().splitlines()] == [True]


PLAIN = """
from gateway.app import logging as logs
from gateway.cli import output

logs.setup()
logs.say("ready http://127.0.0.1:8790")
output.error("nothing there")
"""


def test_a_plain_line_is_one_write_with_its_end() -> None:
    """Other processes write to the same pipe: between a line and its end there would be theirs."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        subprocess.run([sys.executable, "-c", PLAIN], stderr=theirs, env=environment, check=True)
        theirs.close()
        writes = list(iter(lambda: ours.recv(4096), b""))

    assert writes[0] == b"ready http://127.0.0.1:8790\n"
    assert [write.count(b"\n") for write in writes] == [1] * len(writes)


def test_a_plain_line_stands_behind_what_was_said_before_and_tells_no_secret() -> None:
    """It is for scripts as much as the events are."""
    stream = logging_to(io.StringIO())

    structlog.get_logger().info("turn.ended")
    logs.say(f"ready {SECRET}")

    event, line = stream.getvalue().splitlines()
    assert json.loads(event)["event"] == "turn.ended"
    assert line.startswith("ready ")
    assert SECRET not in line


def test_a_secret_too_short_to_hide_is_said(tmp_path: Path) -> None:
    """The operator learns which key; the value is not shown."""
    stream = io.StringIO()
    logs.setup(load(Path(os.devnull), tmp_path, {"CHAT_GATEWAY_HTTP__TOKEN": "abc"}), stream=stream)

    event = json.loads(stream.getvalue())
    assert (event["event"], event["key"]) == ("secret.found_short", "http.token")
