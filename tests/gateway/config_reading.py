"""What tests of the configuration share: reading a text, and the problems it has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.config.load import load
from gateway.config.settings import Settings
from gateway.errors import ConfigError


def read(folder: Path, text: str = "", environ: Mapping[str, str] | None = None) -> Settings:
    file = folder / "chat-gateway.toml"
    file.write_text(text, encoding="utf-8")
    return load(file, None, {"HOME": str(folder), **(environ or {})})


def read_alone(folder: Path, text: str, **environ: str) -> Settings:
    """Read a text with nothing but these variables and the tables that are built in."""
    (folder / "c.toml").write_text(text)
    return load(folder / "c.toml", folder / "w", environ, tables={})


def problems(folder: Path, text: str = "", environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text, environ)
    assert caught.value.exit_code == 78
    return [problem.removeprefix(f"{folder}/") for problem in caught.value.problems]
