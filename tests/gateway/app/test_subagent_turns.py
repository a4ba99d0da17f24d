"""The turns of subagents are those of chats but for what is named here."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from gateway.app.sessions import build_session_services
from gateway.config.load import load

# What a subagent has of its own, or goes without.
OWN = {"limits", "turn_context"}
WITHOUT = {"compactions", "embeddings"}


async def test_they_share_everything_else_with_those_of_chats(tmp_path: Path) -> None:
    """Whatever turns come to have, those of subagents have it too."""
    model = {"CHAT_GATEWAY_MODEL__NAME": "openai/big", "CHAT_GATEWAY_MODEL__EMBEDDING": "openai/small"}
    services = build_session_services(load(None, tmp_path, model, tables={}), status=lambda _: [])
    subagent_turns = services.agents[""].subagent_turns
    try:
        parts = {each.name for each in fields(services.turns)}
        for name in parts - OWN:
            theirs, ours = (getattr(turns, name) for turns in (subagent_turns, services.turns))
            assert ours is not None, name
            assert theirs is (None if name in WITHOUT else ours), name
        assert parts > OWN | WITHOUT
        assert subagent_turns.limits.turn_timeout_s == services.turns.limits.turn_timeout_s
    finally:
        await services.aclose()
