"""One log on stderr for our events, the libraries' records and uncaught errors, all without secrets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Protocol

import orjson
import structlog
from structlog.typing import EventDict, WrappedLogger

import durable
from gateway.config.redact import Redactor
from gateway.config.settings import Settings

Format = Literal["auto", "console", "json"]


class Sink(Protocol):
    """Where lines go: a stream, or what looks like one."""

    def write(self, text: str, /) -> object:
        """Take a text."""
        ...

    def flush(self) -> None:
        """Hand on what was written."""
        ...

    def isatty(self) -> bool:
        """Say whether a person reads it as it comes."""
        ...


# These say at INFO or below what nobody asked for, or a token within an address.
LOUD = (
    "aiormq",
    "discord",
    "httpcore",
    "httpx",
    "httpx2",
    "litellm",
    "LiteLLM",
    "LiteLLM Proxy",
    "LiteLLM Router",
    "openai",
    "telegram",
    "uvicorn.access",
)


def setup(
    settings: Settings | None = None, *, stream: Sink | None = None, at_least: str = "debug"
) -> Redactor:
    """Send all logging, warnings and uncaught errors through one redactor to ``stream`` (default: stderr).

    May be called again: the last call holds. Without settings, only the environment's keys are known.

    ``at_least`` is the lowest level shown, where the configured one is lower (one-shot commands).
    """
    redactor = Redactor.of(settings)
    form: Format = settings.log.format if settings is not None else "console"
    level = max(_number(settings.log.level if settings is not None else "info"), _number(at_least))
    lines = _Lines(redactor, form, stream)
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, lines.render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=False,
    )
    _adopt(_Bridge(lines), level)
    _catch_uncaught(lines)
    for name in redactor.unguarded:
        lines.show("warning", "secret.found_short", key=name)
    return redactor


def catch_loop_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Log what a loop could not deliver to anybody, such as the error of a task that nobody awaited."""
    log = structlog.get_logger()

    def report(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        subject = context.get("task") or context.get("future") or context.get("handle")
        name = subject.get_name() if isinstance(subject, asyncio.Task) else type(subject).__name__
        log.error("loop.error_caught", what=context.get("message"), subject=name, exc_info=error)

    loop.set_exception_handler(report)


def say(line: str) -> None:
    """Write a plain line for people and scripts among the events, without secrets and whole."""
    lines = structlog.get_config()["logger_factory"]()
    if not isinstance(lines, _Lines):
        lines = _Lines(Redactor.of(None), "console", None)
    lines.plain(line)


class _Lines:
    """Renders events and writes each as one line; never raises, since logging must not end a turn."""

    def __init__(self, redactor: Redactor, form: Format, stream: Sink | None) -> None:
        self._redactor = redactor
        self._stream = stream
        self._lock = threading.Lock()
        target = self._target()
        terminal = target is not None and target.isatty()
        self._console: Callable[[WrappedLogger, str, EventDict], str] | None = None
        if form == "console" or (form == "auto" and terminal):
            self._console = structlog.dev.ConsoleRenderer(
                colors=terminal, exception_formatter=structlog.dev.plain_traceback, sort_keys=False
            )

    def render(self, _logger: WrappedLogger, level: str, event: EventDict) -> str:
        """Turn an event into a line: the last processor."""
        fault = event.pop("exc_info", None)
        if fault is True:
            fault = sys.exc_info()[1]
        elif isinstance(fault, tuple):
            fault = fault[1]
        if level == "exception":
            level = "error"
        ordered: EventDict = {
            "timestamp": durable.now().isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": level,
            "event": event.pop("event", ""),
            **event,
        }
        if isinstance(fault, BaseException):
            ordered["exception"] = self._redactor.error(fault)
        try:
            line = self._console(None, level, ordered) if self._console is not None else _json(ordered)
        except Exception as error:  # noqa: BLE001 - a value that cannot be shown must not end what logged it
            kept = {name: ordered[name] for name in ("timestamp", "level")}
            line = _json({**kept, "event": "line.refused", "error": type(error).__name__})
        return self._redactor.text(line)

    def show(self, level: str, name: str, **values: object) -> None:
        """Render and write one event at once, whatever the level shown."""
        self.msg(self.render(None, level, {"event": name, **values}))

    def plain(self, text: str) -> None:
        """Write a line that is no event, at once."""
        self.msg(self._redactor.text(text))

    def msg(self, line: str) -> None:
        """Write a rendered line; where stderr is gone or full, it is lost and nothing else is."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            if (target := self._target()) is not None:
                # Other processes of the gateway write there, too: the end of the line is in the same write.
                target.write(line + "\n")
                target.flush()

    debug = info = warning = warn = error = critical = fatal = exception = log = msg

    def _target(self) -> Sink | None:
        return self._stream if self._stream is not None else sys.stderr


class _Bridge(logging.Handler):
    """Shows the records of the standard library's logging as events."""

    def __init__(self, lines: _Lines) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record as an event with the logger's name."""
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - the library's arguments do not fit its own format
            text = str(record.msg)
        values: EventDict = {"logger": record.name}
        if record.exc_info:
            values["exc_info"] = record.exc_info
        elif record.exc_text:
            values["exception"] = record.exc_text
        self._lines.show(record.levelname.lower(), text, **values)


class _Gate(logging.Filter):
    """Stands on a loud logger: shows warnings itself and lets no record reach the library's own handlers."""

    def __init__(self, bridge: _Bridge) -> None:
        super().__init__()
        self._bridge = bridge

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            self._bridge.emit(record)
        return False


def _adopt(bridge: _Bridge, level: int) -> None:
    root = logging.getLogger()
    root.handlers[:] = [handler for handler in root.handlers if not isinstance(handler, _Bridge)]
    root.addHandler(bridge)
    root.setLevel(max(level, logging.INFO))
    for name in LOUD:
        logger = logging.getLogger(name)
        logger.setLevel(max(level, logging.WARNING))
        logger.filters[:] = [each for each in logger.filters if not isinstance(each, _Gate)]
        logger.addFilter(_Gate(bridge))
    # Whoever set it up before may have been undone by halves.
    logging.captureWarnings(capture=False)
    logging.captureWarnings(capture=True)


def _catch_uncaught(lines: _Lines) -> None:
    def main(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
        if not isinstance(error, KeyboardInterrupt):
            lines.show("critical", "program.failed", exc_info=error)

    def thread(hint: threading.ExceptHookArgs) -> None:
        if hint.exc_value is not None and not isinstance(hint.exc_value, SystemExit):
            name = hint.thread.name if hint.thread is not None else ""
            lines.show("error", "thread.failed", thread=name, exc_info=hint.exc_value)

    def finalizer(hint: sys.UnraisableHookArgs) -> None:
        lines.show("error", "finalizer.failed", what=hint.err_msg or "", exc_info=hint.exc_value)

    sys.excepthook = main
    sys.unraisablehook = finalizer
    threading.excepthook = thread


def _json(event: EventDict) -> str:
    try:
        return orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
    # orjson refuses a lone surrogate and an integer over 64 bits.
    except TypeError:
        return json.dumps(event, default=repr)


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]
