"""What the configuration says of messages that come while others wait, by channel."""

from __future__ import annotations

from pathlib import Path

from gateway.app.figures import queue_rules
from gateway.config.load import load


def test_a_channels_own_mode_stands_before_that_of_all(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        '[limits]\nqueue_mode = "collect"\ncollect_s = 2\n[channels.telegram]\nqueue_mode = "steer"\n'
    )

    rules = queue_rules(load(tmp_path / "c.toml", tmp_path / "w", {}, tables={}))

    assert [rules.of(name) for name in ("telegram", "discord", "web")] == ["steer", "collect", "collect"]
    assert rules.collect_s == 2


def test_by_default_messages_are_answered_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("")

    rules = queue_rules(load(tmp_path / "c.toml", tmp_path / "w", {}, tables={}))

    assert [rules.of(name) for name in ("telegram", "discord", "web")] == ["followup"] * 3
