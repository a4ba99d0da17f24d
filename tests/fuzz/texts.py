"""Targets that read bytes alone: transcripts, bodies of queues, configurations, Markdown."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from channels.errors import Unreadable
from channels.message import read_inbound, read_outbound
from channels.telegram.formatting import MAX_ENTITIES, render
from channels.text import split_markdown, utf16_len
from durable import is_blank
from gateway.config.load import load
from gateway.config.redact import shown_settings
from gateway.config.schema import json_schema
from gateway.config.settings import Settings
from gateway.errors import ConfigError
from session.transcript import pages
from session.transcript.history import visible
from session.transcript.line import decode
from session.transcript.repair import repair
from session.transcript.transcript import parse
from tests.channels.telegram.test_telegram_format import nested
from tests.fuzz.targets import Once, Target, folder, pure
from tests.session.wild_lines import assert_legal
from tests.support.telegram_chats import check_entities

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
LIMITS = (16, 40, 100, 4096)


def _transcript(data: bytes) -> None:
    """It is read whatever it holds; what is written of it is read again as it was; requests are legal."""
    found = parse(data, stem="cli_direct")
    lines = [decode(raw) for raw in found.messages]
    again = parse(found.head(now=NOW) + b"".join(raw + b"\n" for raw in found.messages), stem="cli_direct")

    assert list(again.messages) == list(found.messages)
    assert again.last_consolidated == found.last_consolidated
    assert not again.damaged
    assert (again.key, again.session_id) == (found.key, found.session_id)
    sent = visible(lines, last_consolidated=found.last_consolidated, running_id=None)
    assert_legal(sent)
    assert repair(sent) == sent
    json.dumps([pages.entry_of(line, seq) for seq, line in enumerate(lines, 1)])
    pages.records_page(found.messages, after=0, limit=1000)


def _inbound(data: bytes) -> None:
    """A letter that is taken is the same one once more."""
    with suppress(Unreadable):
        found, _ = read_inbound(data)
        assert read_inbound(found.to_bytes()) == (found, [])


def _outbound(data: bytes) -> None:
    with suppress(Unreadable):
        found = read_outbound(data)
        assert read_outbound(found.to_bytes()) == found


def _loaded(file: Path) -> tuple[Settings | None, Sequence[str]]:
    try:
        return load(file, None, {"HOME": str(file.parent)}, tables={}), ()
    except ConfigError as error:
        return None, error.problems


@contextmanager
def _configuration() -> Iterator[Once]:
    """A file is taken, or refused with its problems in words; what is taken fits the schema, and is shown."""
    schema = Draft202012Validator(json_schema(Settings))
    with folder() as place:
        file = place / "config.toml"

        def once(data: bytes) -> None:
            file.write_bytes(data)
            found, problems = _loaded(file)
            if found is None:
                assert problems
                return
            assert schema.is_valid(tomllib.loads(data.decode("utf-8-sig")))
            json.dumps(shown_settings(found))

        yield once


def _markdown(data: bytes) -> None:
    """Pieces for both platforms keep within their limits, and Telegram takes the entities."""
    text = data.decode("utf-8", "surrogatepass" if data[:1] == b"\xed" else "replace")
    limit = LIMITS[len(data) % len(LIMITS)]
    for piece in split_markdown(text, limit):
        assert 0 < len(piece) <= limit
        assert not is_blank(piece)
    for rendered in render(text, limit):
        found: list[dict[str, Any]] = list(rendered.markup or ())  # type: ignore[call-overload]
        assert 0 < utf16_len(rendered.plain) <= limit
        assert not is_blank(rendered.plain)
        assert len(found) <= MAX_ENTITIES
        assert check_entities(rendered.plain, found) == found
        assert all(nested(one, other) for one, other in combinations(found, 2))


def _text(data: bytes) -> None:
    with suppress(UnicodeDecodeError):
        _markdown(data)


TARGETS = {
    target.name: target
    for target in (
        Target("transcript", pure(_transcript), form="json"),
        Target("inbound", pure(_inbound), form="json"),
        Target("outbound", pure(_outbound), form="json"),
        Target("configuration", _configuration),
        Target("markdown", pure(_text)),
    )
}
