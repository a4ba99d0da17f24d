"""How many workers a gateway has, and what it says where it has none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.config.load import load, load_values, of_values
from gateway.config.settings import Settings
from gateway.errors import ConfigError
from gateway.workers.count import ALONE, count, remarks
from gateway.workers.line import encoded


def settings(tmp_path: Path, **variables: str) -> Settings:
    return load(None, tmp_path, {f"CHAT_GATEWAY_{name}": value for name, value in variables.items()})


BROKER = {"BROKER__URL": "amqp://guest:guest@127.0.0.1/"}


@pytest.mark.parametrize(
    ("configured", "asked", "number"),
    [("1", None, 0), ("3", None, 3), ("3", 1, 0), ("1", 2, 2), ("0", None, len(os.sched_getaffinity(0)))],
)
def test_the_command_line_goes_before_the_configuration(
    tmp_path: Path, configured: str, asked: int | None, number: int
) -> None:
    """0 is one a core; one alone needs no second process."""
    found = settings(tmp_path, **BROKER, LIMITS__WORKERS=configured)

    assert count(found, "all", asked) == (0 if number == 1 else number)
    assert count(found, "session", asked) == count(found, "all", asked)


def test_adapters_alone_have_none_and_refuse_them(tmp_path: Path) -> None:
    """The same configuration may serve both roles; what was asked for by hand is refused."""
    found = settings(tmp_path, **BROKER, LIMITS__WORKERS="4")

    assert count(found, "channels") == 0
    with pytest.raises(ConfigError, match="--workers: a process of role channels runs no conversations"):
        count(found, "channels", 2)


def test_what_cannot_be_had_is_said(tmp_path: Path) -> None:
    """The embedded queue is one process' own; more workers than partitions have nothing to do."""
    embedded = settings(tmp_path, LIMITS__WORKERS="4")
    few = settings(tmp_path, **BROKER, BROKER__PARTITIONS="2")

    assert (count(embedded, "all"), remarks(embedded, "all")) == (0, [ALONE])
    assert remarks(settings(tmp_path), "all") == []
    assert remarks(few, "all", 3) == ["workers: 3 share 2 partitions, so that 1 have none"]


def test_a_worker_has_the_very_configuration_of_its_gateway(tmp_path: Path) -> None:
    """Secrets and all, as it goes over the line, whatever becomes of the file."""
    (tmp_path / "c.toml").write_text(
        'timezone = "Europe/Berlin"\n[http]\ntoken = "a-secret-of-some-length"\n[limits]\ncollect_s = 1\n'
        "[people]\nada = ['telegram:1']\n[agents.cook]\n[agents.cook.model]\nname = 'echo'\n"
        '[mcp.files]\ncommand = ["files"]\n'
    )
    read, values = load_values(tmp_path / "c.toml", tmp_path / "w", {})
    sent: dict[str, Any] = json.loads(encoded({"settings": dict(values)}))["settings"]

    # A worker asks for no name of the file.
    read.read_from(None)
    assert of_values(sent) == read
    assert of_values(sent).http.token.get_secret_value() == "a-secret-of-some-length"
