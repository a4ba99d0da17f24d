"""Which table of the policy holds for a tool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from session.approvals.rules import Decision, PolicyRules
from session.tools import ToolPlace

ADA = ToolPlace(Path("/w"), "telegram:1", sender={"id": "1"})
GROUP = ToolPlace(Path("/w"), "telegram:-5", sender={"id": "1"}, group=True)
RULES = PolicyRules(
    tools={"*": "ask", "read": "allow", "mcp.time.*": "allow", "mcp.time.set": "deny"},
    channels={"telegram": {"shell": "deny"}, "discord": {"*": "deny"}},
    chats={"telegram:-5": {"shell": "ask", "read": "deny"}, "telegram:-5:topic:8": {"read": "allow"}},
    people={"ada": {"shell": "allow"}, "telegram:9": {"read": "allow"}},
    person_of={"telegram:1": "ada", "discord:77": "ada", "telegram:-7": "ada"},
)
LISTED = replace(GROUP, key="telegram:-7")


@pytest.mark.parametrize(
    ("name", "place", "decision"),
    [
        ("read", ADA, "allow"),
        ("write", ADA, "ask"),
        # The person comes before the channel, in a group as well: the chat and the channel say otherwise.
        ("shell", ADA, "allow"),
        ("shell", GROUP, "allow"),
        ("shell", replace(GROUP, sender={"id": "2"}), "ask"),
        ("shell", replace(ADA, key="telegram:2", sender={"id": "2"}), "deny"),
        ("read", GROUP, "deny"),
        # By the id alone, for whom [people] does not list.
        ("read", replace(GROUP, sender={"id": "9"}), "allow"),
        # A direct chat of Discord has another id than its person, and is listed by its key.
        ("shell", replace(ADA, key="discord:77", sender={"id": "4"}), "allow"),
        ("read", replace(ADA, key="discord:77", sender={"id": "4"}), "deny"),
        # A group that is listed with a person is others', too: who writes there decides.
        ("shell", replace(LISTED, sender={"id": "666"}), "deny"),
        ("shell", replace(LISTED, sender={}), "deny"),
        # Who writes as the group itself has its id.
        ("shell", replace(LISTED, sender={"id": "-7"}), "deny"),
        ("shell", replace(LISTED, key="sub:X:1", chat=LISTED.key, sender={"id": "666"}), "deny"),
        ("shell", LISTED, "allow"),
        # What a group may do its topics may, where no table of their own says otherwise.
        ("read", replace(GROUP, key="telegram:-5:topic:7"), "deny"),
        ("shell", replace(GROUP, key="telegram:-5:topic:7", sender={"id": "2"}), "ask"),
        ("read", replace(GROUP, key="telegram:-5:topic:8"), "allow"),
        ("shell", replace(GROUP, key="telegram:-5:topic:8", sender={"id": "2"}), "ask"),
        ("read", ToolPlace(Path("/w"), "cron:1", chat="telegram:-5:topic:7", source="cron"), "deny"),
        ("shell", replace(LISTED, key="telegram:-7:topic:7", sender={"id": "-7"}), "deny"),
        ("mcp.time.now", ADA, "allow"),
        ("mcp.time.set", ADA, "deny"),
        ("mcp.files.read", ADA, "ask"),
        # A job has no person.
        ("shell", ToolPlace(Path("/w"), "cron:1", source="cron"), "ask"),
        # A subagent and a job are held to the tables of the chat for which they work, and to their own.
        ("shell", ToolPlace(Path("/w"), "sub:X:1", chat="telegram:2", sender={"id": "2"}), "deny"),
        ("read", ToolPlace(Path("/w"), "cron:1", chat="telegram:-5", source="cron"), "deny"),
        ("read", ToolPlace(Path("/w"), "discord:8", chat="telegram:2"), "deny"),
        ("read", ToolPlace(Path("/w"), "sub:X:1", chat="telegram:2"), "allow"),
    ],
)
def test_the_first_table_that_names_a_tool_holds(name: str, place: ToolPlace, decision: Decision) -> None:
    assert RULES.decide(name, place) == decision


@pytest.mark.parametrize("said", ["deny", "ask"])
@pytest.mark.parametrize("kind", ["channels", "chats"])
def test_a_subagent_may_do_no_more_than_the_job_that_started_it(kind: str, said: Decision) -> None:
    """Both answer in a chat whose own tables allow the tool."""
    named = {"channels": "cron", "chats": "cron:1"}[kind]
    rules = PolicyRules(**{kind: {named: {"shell": said}}})  # type: ignore[arg-type]
    job = ToolPlace(Path("/w"), "cron:1", chat="telegram:1", source="cron")

    assert rules.decide("shell", job) == said
    assert rules.decide("shell", replace(job, key="sub:X:1", parent="cron:1", source="interactive")) == said
    assert rules.decide("shell", ToolPlace(Path("/w"), "sub:X:1", chat="telegram:1")) == "allow"


@pytest.mark.parametrize(
    ("of_chat", "decision"), [({}, "allow"), ({"write": "ask"}, "ask"), ({"*": "deny"}, "deny")]
)
@pytest.mark.parametrize("said", ["ask", "deny"])
def test_what_allows_a_tool_to_a_job_comes_before_the_general_table(
    said: Decision, of_chat: dict[str, Decision], decision: Decision
) -> None:
    """Though it answers in a chat; what the chat's own table says holds for it, too."""
    chats: dict[str, dict[str, Decision]] = {"cron:1": {"write": "allow"}, "telegram:1": of_chat}
    rules = PolicyRules(tools={"write": said}, chats=chats)
    job = ToolPlace(Path("/w"), "cron:1", chat="telegram:1", source="cron")

    assert rules.decide("write", job) == decision
    assert rules.decide("write", replace(job, key="sub:X:1", parent="cron:1")) == decision
    assert rules.decide("write", replace(job, key="cron:2")) == (said if not of_chat else decision)


def test_a_subagent_is_allowed_nothing_that_its_parent_is_asked_for() -> None:
    """The tables of its own key and channel can but be stricter."""
    place = ToolPlace(Path("/w"), "sub:X:1", chat="telegram:1", parent="telegram:1")

    for said in ("allow", "deny"):
        rules = PolicyRules(tools={"write": "ask"}, channels={"sub": {"write": said}})
        assert rules.decide("write", place) == ("ask" if said == "allow" else "deny")


def test_of_several_people_the_strictest_decision_holds() -> None:
    """One whom no table names has the general one."""
    rules = PolicyRules(tools={"shell": "deny"}, people={"telegram:1": {"shell": "allow"}})

    assert [rules.decide("shell", GROUP, who) for who in (["1"], ["1", "2"])] == ["allow", "deny"]
    assert [RULES.decide("shell", GROUP, who) for who in (["1"], ["1", "2"])] == ["allow", "ask"]
    assert PolicyRules().decide("shell", ADA) == "allow"


@pytest.mark.parametrize("kind", ["tools", "people", "chats", "channels"])
def test_whether_anything_is_denied_is_asked_of_every_table(kind: str) -> None:
    """Where nothing is, no tool needs to be asked about one by one."""
    tables = {
        "tools": {"tools": {"read": "ask", "shell": "deny"}},
        "people": {"people": {"ada": {"shell": "deny"}}},
        "chats": {"chats": {"telegram:-5": {"shell": "deny"}}},
        "channels": {"channels": {"telegram": {"shell": "deny"}}},
    }
    assert PolicyRules(**tables[kind]).denies()  # type: ignore[arg-type]
    assert not PolicyRules(tools={"read": "ask"}, people={"ada": {"shell": "allow"}}).denies()
