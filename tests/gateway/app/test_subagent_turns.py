"""The turns of subagents are those of chats but for what is named here."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from gateway.app.wiring_session import SessionServices
from gateway.config.load import load
from session.context.request import Asking
from session.memory.scope_resolver import PARENT
from session.models.spending import Meter
from session.subagents.records import Call, SubagentFiles
from session.transcript.key import SessionKey
from session.turn.turn import Request

# What a subagent has of its own, or goes without.
OWN = {"limits", "turn_context"}
WITHOUT = {"compactions", "embeddings"}
POLICY = """
[tools]
groups = ["read", "write", "edit"]

[tools.policy.channels.cron]
write = "deny"

[tools.policy.chats."cron:1"]
edit = "ask"
"""


async def test_they_share_everything_else_with_those_of_chats(tmp_path: Path) -> None:
    """Whatever turns come to have, those of subagents have it too."""
    model = {"CHAT_GATEWAY_MODEL__NAME": "openai/big", "CHAT_GATEWAY_MODEL__EMBEDDING": "openai/small"}
    services = SessionServices(load(None, tmp_path, model, tables={}), status=lambda *_: [])
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


async def test_what_the_policy_says_of_a_job_holds_for_its_subagent(tmp_path: Path) -> None:
    """Though both answer in a chat of which it says nothing."""
    config = tmp_path / "config.toml"
    config.write_text(POLICY)
    settings = load(config, tmp_path, {}, tables={})
    services = SessionServices(settings, status=lambda *_: [])
    turns = services.agents[""].subagent_turns
    call = Call("cron:1", "01J", "m1", "c1")
    origin = {"answer_to": "telegram:1", "source": "cron"}
    begun = SubagentFiles(settings.state).begin(call, task="look", label="look", origin=origin)
    own = services.subagent_store
    try:
        async with own.open(SessionKey(begun.key)) as session:
            await session.remember({PARENT: begun.parent})
            request = Request(begun.id, session.key, "look")
            assert turns.turn_context is not None
            drawn = await turns.turn_context(session, request)
            place = Asking(
                session,
                request,
                drawn,
                model=turns.model,
                toolbox=turns.toolbox,
                limits=turns.limits,
                workspace=None,
                embeddings=None,
                meter=Meter(),
            ).place()

        assert {"read", "edit"} <= set(drawn.tools)
        assert "write" not in drawn.tools
        assert place.chat == "telegram:1"
        assert turns.gate is not None
        said = [turns.gate.decide(name, place, [""]) for name in ("write", "edit", "read")]
        assert said == ["deny", "ask", "allow"]
    finally:
        await own.aclose()
        await services.aclose()
