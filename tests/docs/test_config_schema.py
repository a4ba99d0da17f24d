"""What ``config schema`` prints accepts what the gateway accepts, and says what each key means."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from gateway.__main__ import main
from gateway.config.schema import keys
from tests.docs import configuration_page as made
from tests.docs.page import read

DOCS = made.DOCS

# What a number counts, by the end of its key's name.
UNITS = {
    "_s": "seconds",
    "_mb": "megabytes",
    "_kb": "kilobytes",
    "_hours": "hours",
    "_days": "days",
    "_usd": "US dollars",
}


@pytest.fixture
def schema(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["config", "schema"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def mistakes(schema: dict[str, Any], document: object) -> list[str]:
    return [error.message for error in Draft202012Validator(schema).iter_errors(document)]


def test_it_is_a_schema_for_old_and_new_plugins(schema: dict[str, Any]) -> None:
    """The draft that it names, and the one that editors' plugins know at least."""
    Draft202012Validator.check_schema(schema)
    Draft7Validator.check_schema(schema)


def test_every_key_of_the_reference_is_told(schema: dict[str, Any]) -> None:
    """Each has its description, which contains the unit that its name ends with."""
    found = dict(keys(schema))

    for name, entry in found.items():
        units = [unit for end, unit in UNITS.items() if name.endswith(end)]
        assert entry.get("description"), name
        assert all(unit in entry["description"] for unit in units)


def test_the_example_fits_with_every_key_in_force(schema: dict[str, Any]) -> None:
    text = made.EXAMPLE.read_text()
    document = tomllib.loads(re.sub(r"^# (\w+ = .*)$", r"\1", text, flags=re.MULTILINE))

    assert mistakes(schema, tomllib.loads(text)) == []
    assert document["channels"]["telegram"]["poll_timeout_s"]
    assert mistakes(schema, document) == []


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_what_the_pages_show_fits(page: Path, schema: dict[str, Any]) -> None:
    """Each piece of a configuration in the documentation is one that an editor does not underline."""
    for code in read(page).code:
        document = tomllib.loads(code.text) if code.language == "toml" else {}
        # Adapters of other packages are not installed here; other TOML has none of our tables.
        known = schema["properties"]["channels"]["properties"]
        if "channels" in document:
            document["channels"] = {
                name: document["channels"][name] for name in known & document["channels"].keys()
            }
        if all(name in schema["properties"] for name in document):
            assert mistakes(schema, document) == [], f"line {code.line}"


@pytest.mark.parametrize(
    "text",
    [
        "[http]\nprot = 1",
        "[htp]\nport = 1",
        "[http]\nport = '1'",
        "[http]\nport = 70000",
        "[broker]\nqueue_type = 'mirrored'",
        "[limits]\nattempts = 1.5",
        "[channels.telegram]\nenabled = 'yes'",
        "[channels.telegram]\ntokn = 'x'",
        "[tools.policy]\nshell = 'perhaps'",
        "[tools.policy.people.ada]\nshell = 1",
        "[mcp.time]\ncomand = ['x']",
        "[mcp.time]\ncommand = 'x'",
        "[people]\nada = 'telegram:1'",
        "timezone = 1",
    ],
)
def test_a_mistake_is_refused(text: str, schema: dict[str, Any]) -> None:
    """An unknown key, a wrong type, a number out of range, a word that is none of the choices."""
    assert mistakes(schema, tomllib.loads(text))
