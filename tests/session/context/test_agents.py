"""Which agent answers in which chat, by bindings and by choice."""

from __future__ import annotations

from pathlib import Path

import pytest

from session.context.agents import Agents, Binding
from session.context.scopes import Reader, Scopes
from session.transcript.agent import agent_in, is_name

BINDINGS = [
    Binding("channel", "telegram", "clerk"),
    Binding("person", "telegram:1", "coder"),
    Binding("chat", "telegram:-5", "coder"),
    Binding("topic", "telegram:-5:topic:7", "clerk", fixed=True),
    Binding("chat", "telegram:9", ""),
]
EVERY = ("", "coder", "clerk", "x")
AGENTS = Agents({"coder": "chat", "clerk": "workspace"}, BINDINGS)


@pytest.mark.parametrize(
    ("key", "chosen", "agent"),
    [
        ("cli:direct", None, ""),
        ("telegram:2", None, "clerk"),
        ("telegram:1", None, "coder"),
        ("telegram:-5", None, "coder"),
        ("telegram:-5:topic:8", None, "coder"),
        ("telegram:-5:topic:7", None, "clerk"),
        ("telegram:-55", None, "clerk"),
        ("telegram:9", None, ""),
        ("telegram:2", "coder", "coder"),
        ("telegram:2", "", ""),
        ("telegram:2", "gone", "clerk"),
        ("telegram:-5:topic:7", "coder", "clerk"),
    ],
)
def test_what_was_chosen_goes_before_the_most_specific_binding(
    key: str, chosen: str | None, agent: str
) -> None:
    """But not where the binding is fixed, nor where nobody has that name any more."""
    assert AGENTS.of(key, chosen) == agent


def test_each_agent_has_scopes_of_its_own(tmp_path: Path) -> None:
    """Those of the default one are where they are without any other."""
    scopes = Scopes(tmp_path, kind="chat", people={"ada": ["telegram:1"]}, agents=AGENTS)
    reader = Reader("telegram:1", "direct")

    found = {
        agent: scopes.of(reader, stem="telegram_1", agent=agent) for agent in ("", "coder", "clerk", "x")
    }

    assert {agent: scope.name for agent, scope in found.items()} == {
        "": "people/ada",
        "coder": "agents/coder/people/ada",
        "clerk": "agents/clerk/workspace",
        "x": "agents/x/people/ada",
    }
    assert found["coder"].memory == tmp_path / "agents/coder/memory/people/ada"
    assert found["clerk"].files == tmp_path / "agents/clerk/files"
    for scope in found.values():
        assert scopes.named(scope.name) == scope
        assert scope.person == (None if scope.agent == "clerk" else "ada")


@pytest.mark.parametrize("name", ["default", "chats", "people", "", "A", "a/b", "..", "a" * 33, "-a"])
def test_a_name_that_could_lead_elsewhere_is_none(name: str) -> None:
    assert not is_name(name)
    assert agent_in({"agent": name}) == ""
