"""Another clock for the product, as a simulation would give it."""

from __future__ import annotations

from typing import Any

import pytest

import durable


def set_world(monkeypatch: pytest.MonkeyPatch, **methods: Any) -> None:
    """Replace methods of ``durable.World`` until the end of the test."""
    world = durable.World()
    for name, method in methods.items():
        setattr(world, name, method)
    monkeypatch.setattr("durable.clock._world", world)
