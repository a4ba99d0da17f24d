"""Fields that only the provider understands go back to the model that wrote them, and to no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from session.models.model import Warms
from tests.gateway.http_place import Place, open_place
from tests.support.model_replies import Reply, Seen
from tests.support.model_server import ModelServer

SIGNED = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
DETAILS = {"reasoning_details": [{"type": "reasoning.encrypted", "data": "b3Bh", "index": 0}]}
# (fields of the message, fields of each call)
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "google": ({}, SIGNED),
    "openrouter": (DETAILS, {}),
    "both": ({**DETAILS, "reasoning_opaque": "Y29w"}, {**SIGNED, "signature": "s"}),
}


async def asked(place: Place, text: str, chat: str = "ada") -> str:
    services = place.application.services
    assert services is not None
    assert isinstance(services.model, Warms)
    await services.model.warm()
    return str((await place.post(text, chat=chat, wait=30)).json()["reply"])


def strict(fields: dict[str, Any], in_calls: dict[str, Any]) -> Any:
    """Answer as a provider that refuses every request in which something of an earlier call is missing."""

    def chooses(seen: Seen) -> Reply | None:
        for message in seen.messages:
            calls = message.get("tool_calls") or []
            if not calls:
                continue
            kept = all(message.get(name) == value for name, value in fields.items())
            if not kept or any(call.get(name) != value for call in calls for name, value in in_calls.items()):
                return Reply(status=400, error={"message": "Function call is missing a thought_signature"})
        if "look" in seen.text and seen.messages[-1]["role"] != "tool":
            calls = [("ls", '{"path": "."}'), ("ls", "{}")]
            return Reply(tool_calls=calls, in_message=fields, in_calls=in_calls)
        return None

    return chooses


@pytest.mark.parametrize("stream", ["auto", "always"])
async def test_a_strict_provider_gets_back_what_it_wrote(tmp_path: Path, stream: str) -> None:
    """Within the turn and in later ones, whole and streamed; a name that is ours is not overwritten."""
    async with ModelServer() as model:
        table = {"name": "openai/strict", "api_base": model.url, "stream": stream}
        async with open_place(tmp_path, model=table) as place:
            for number, (fields, in_calls) in enumerate(KINDS.values()):
                model.chooses = strict(fields, in_calls)
                chat = f"chat{number}"
                for text in ("look", "and now?"):
                    assert await asked(place, text, chat) == f"stub: {text}"


async def test_another_model_gets_none_of_them(tmp_path: Path) -> None:
    """The fallback that takes over within a turn, and any other model of a later one."""
    async with ModelServer() as model:

        def chooses(seen: Seen) -> Reply | None:
            if seen.body["model"] == "a":
                if len(model.seen) == 1:
                    return Reply(tool_calls=[("ls", "{}")], in_message=DETAILS, in_calls=SIGNED)
                return Reply(status=503)
            return None

        model.chooses = chooses
        table = {"name": "openai/a", "api_base": model.url, "fallbacks": ["openai/b"]}
        async with open_place(tmp_path, model=table) as place:
            assert await asked(place, "look") == "stub: look"

        own, other = model.seen[1].messages[-2], model.seen[2].messages[-2]
    assert (own["reasoning_details"], own["tool_calls"][0]["extra_content"]) == (
        DETAILS["reasoning_details"],
        SIGNED["extra_content"],
    )
    assert not {"reasoning_details", "opaque"} & other.keys()
    assert other["tool_calls"][0].keys() == {"id", "type", "function"}
