"""``docs/configuration.md`` and the example file tell every key as it is."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from channels.tables import Platform
from gateway.__main__ import main
from gateway.config.load import load
from gateway.config.schema import json_schema, keys
from gateway.config.settings import Settings
from tests.docs import configuration_page as made
from tests.docs.page import unknown_keys
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "interfaces", "The documentation matches the program in every setting, route, command and example."
)

WRITE = "python -m tests.docs.configuration_page"


def test_the_page_and_the_example_are_as_they_are_written() -> None:
    """A key that is added, changed or taken away shows in both."""
    old = made.PAGE.read_text()

    assert made.page(old) == old, WRITE
    assert made.example() == made.EXAMPLE.read_text(), WRITE


def test_every_secret_has_its_file() -> None:
    """A key that ends with ``_file`` stands beside the secret that it is for."""
    found = dict(keys(json_schema(Settings)))
    secrets = {name for name in found if name.endswith("_file") and name.removesuffix("_file") in found}

    assert len(secrets) == 7


def test_the_example_is_accepted_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """``config check`` finds nothing in it."""
    assert main(["--config", str(made.EXAMPLE), "config", "check"]) == 0
    assert ": no problems" in capsys.readouterr().out


def test_the_example_is_accepted_with_every_key_in_force(tmp_path: Path) -> None:
    """With the comments taken off the keys, each stands there and has its default."""
    text = re.sub(r"^# (\w+ = .*)$", r"\1", made.EXAMPLE.read_text(), flags=re.MULTILINE)
    file = tmp_path / "chat-gateway.toml"
    file.write_text(text)
    document = tomllib.loads(text)

    read, plain = load(file, None, {"HOME": str(tmp_path)}), load(None, tmp_path, {})
    named = {name for name, entry in keys(json_schema(Settings)) if "default" in entry}

    assert list(unknown_keys(document)) == []
    assert all(_holds(document, name.split(".")) for name in named if not re.search(r"_file|\.\*\.", name))
    assert read.file == file
    read.read_from(None)
    assert read.model_copy(update={"workspace": tmp_path, "compaction": plain.compaction}) == plain


def _holds(document: object, path: list[str]) -> bool:
    for part in path:
        if not isinstance(document, dict) or part not in document:
            return path == ["people"]
        document = document[part]
    return True


def test_the_verb_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    """It is one JSON document in which each key has a type, and each secret its file."""
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    found = dict(keys(schema))

    assert all("type" in entry for entry in found.values())
    assert "$ref" not in json.dumps(schema)
    assert found["broker.partitions"]["maximum"] == 256
    assert {"http.token_file", "broker.url_file", "channels.discord.token_file"} <= set(found)
    telegram = schema["properties"]["channels"]["properties"]["telegram"]
    assert set(Platform.model_fields) <= set(telegram["properties"])
