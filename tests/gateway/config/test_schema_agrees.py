"""What ``config schema`` refuses the gateway refuses, and the other way round where a schema can say it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator

from gateway.config.load import load
from gateway.config.schema import json_schema, keys
from gateway.config.settings import Settings
from gateway.errors import ConfigError
from tests.support.examples import share_of

SCHEMA = json_schema(Settings)
CHECKED = Draft202012Validator(SCHEMA)
VALUES = (
    *("true", "0", "1", "-1", "2", "0.5", "-0.5", "1000000000", "2020-01-01"),
    *('""', '"x"', '"/x"', '"on"', '"two words"', '"UTC"', '"telegram:1"'),
    *('"http://a/"', '"HTTPS://a:99"', '"http://"', '"http://a b"', '"wss://a"', '"amqp://h"', '"amqp:h"'),
    *("[]", "[1]", '["x"]', '["/x"]', '["telegram:1"]', '["x", true]', '[["x"]]'),
    *("{}", "{zork = 1}", '{zork = "x"}', "{zork = {}}", '{zork = ["x"]}', '{"a:b" = {}}', "{default = {}}"),
    *("[{}]", '[{agent = "default", command = "ask"}]', '[{agent = "default", command = "/ask"}]'),
)
# What no schema can say: it knows no zones, no other files, no environment, and of keys only one at a time.
BEYOND: Final = re.compile(
    r"the name of a time zone"
    r"|No such file or directory"
    r"|missing, though (enabled = true|host = .* is not loopback)"
    r"|set command for a stdio server, or url"
    r"|expected exactly one of channel"
    r"|no agent|no channel|has no '"
)


def documents() -> Iterator[str]:
    """Each key alone with the values, and what may be in no file at all.

    Where it is not ``make chaos-all``, each key has a quarter of the values, its neighbours the others.
    """
    step = 50 // share_of(50)
    for number, (name, _) in enumerate(keys(SCHEMA)):
        # A list of tables comes as a value.
        if not name.startswith("bindings."):
            path = ".".join(part.replace("*", "zork") for part in name.split("."))
            yield from (f"{path} = {value}" for value in VALUES[number % step :: step])
    yield from ("zork = 1", "http.zork = 1", "agents.zork.model.embedding = 'x'", "mcp.'a b'.command = ['x']")


def problems_of(file: Path, text: str) -> list[str]:
    file.write_text(text)
    try:
        load(file, None, {"HOME": str(file.parent)}, tables={})
    except ConfigError as error:
        return list(error.problems)
    return []


@pytest.mark.hypothesis
def test_no_value_is_judged_otherwise(tmp_path: Path) -> None:
    """Unknown keys, types, ranges, choices and the form of texts, for every key there is."""
    otherwise: list[Any] = []
    count = 0
    for text in documents():
        count += 1
        refused = [error.message for error in CHECKED.iter_errors(tomllib.loads(text))]
        problems = problems_of(tmp_path / "c.toml", text)
        if not problems if refused else any(not BEYOND.search(each) for each in problems):
            otherwise.append((text, refused, problems))

    assert otherwise == []
    assert count > share_of(5000)


@pytest.mark.parametrize("text", ['[mcp.x]\ncommand = ["x"]\nreadable = ["x"]', '[mcp.x]\nurl = "ftp://a"'])
def test_a_table_that_is_whole_but_for_one_key(text: str, tmp_path: Path) -> None:
    assert not CHECKED.is_valid(tomllib.loads(text))
    assert problems_of(tmp_path / "c.toml", text)


def test_every_key_has_its_words_and_what_it_takes() -> None:
    """A type or choices for each, and a default of that type."""
    for name, entry in keys(SCHEMA):
        assert entry.get("description"), name
        assert "type" in entry or "enum" in entry or "const" in entry, name
        if "default" in entry:
            assert Draft202012Validator(entry).is_valid(json.loads(json.dumps(entry["default"]))), name
