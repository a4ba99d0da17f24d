"""A model without its key is known as such before LiteLLM is imported, and told with the variable's name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from session.errors import ModelAway
from session.models.credentials import VARIABLES, cure, lacks_key
from session.models.llm import LiteLLM
from tests.contracts.models import prompt

KEYLESS = """
import asyncio, sys
from session.errors import ModelAway
from session.models.llm import LiteLLM
from tests.contracts.models import prompt

async def main():
    model = LiteLLM(name="anthropic/claude-sonnet-4-5", fallbacks=["openai/gpt-4o"])
    await model.warm()
    assert await model.context_window() == 0
    try:
        await model.ask(prompt("hi"))
    except ModelAway as error:
        print(error.cause, "|", error, "|", error.hint, "|", "litellm" in sys.modules)

asyncio.run(main())
"""


@pytest.fixture
def no_keys() -> Iterator[None]:
    names = {name for group in VARIABLES.values() for name in group}
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    yield
    os.environ.update(kept)


@pytest.mark.parametrize(
    ("model", "environment", "lacks"),
    [
        ("openai/gpt-4o", {}, True),
        ("openai/gpt-4o", {"OPENAI_API_KEY": "x"}, False),
        ("openai/gpt-4o", {"OPENAI_API_KEY": " "}, True),
        ("openai/gpt-4o", {"ANTHROPIC_API_KEY": "x"}, True),
        ("gpt-4o", {}, True),
        ("claude-sonnet-4-5", {}, True),
        ("claude-sonnet-4-5", {"ANTHROPIC_AUTH_TOKEN": "x"}, False),
        ("gemini/gemini-2.5-pro", {"GOOGLE_API_KEY": "x"}, False),
        ("openrouter/openai/gpt-4o", {"OPENAI_API_KEY": "x"}, True),
        ("bedrock/anthropic.claude", {}, False),
        ("vertex_ai/gemini-2.5-pro", {}, False),
        ("ollama/llama3", {}, False),
        ("mystery", {}, False),
    ],
)
def test_only_what_is_certain_counts(model: str, environment: dict[str, str], lacks: bool) -> None:
    """A key is missed where its provider is known to ask for one, and nowhere else."""
    assert lacks_key(model, environment) is lacks


def test_the_variables_are_those_of_litellm(no_keys: None) -> None:
    """Any one of the named variables is a key that LiteLLM finds, or one that it names as missing."""
    from litellm import validate_environment

    for provider, names in VARIABLES.items():
        if provider == "cohere_chat":
            continue
        missing = validate_environment(f"{provider}/some-model")["missing_keys"]
        assert set(missing) & set(names), f"{provider}: LiteLLM misses {missing}"


def test_without_a_key_nothing_is_imported(no_keys: None) -> None:
    """Neither request nor warming up imports LiteLLM where every model lacks its key."""
    done = subprocess.run([sys.executable, "-c", KEYLESS], capture_output=True, text=True, check=True)

    assert done.stdout == (
        "credentials | anthropic/claude-sonnet-4-5: no API key | "
        "set ANTHROPIC_API_KEY, or model.api_key_file | False\n"
    )


async def test_a_key_of_ones_own_or_a_server_is_enough(no_keys: None) -> None:
    """``model.api_key`` and ``model.api_base`` serve the models of the same provider, and no others."""
    assert LiteLLM(name="openai/x").trouble() is not None
    assert LiteLLM(name="openai/x", api_key="k").trouble() is None
    assert LiteLLM(name="openai/x", api_base="http://127.0.0.1:1/v1").trouble() is None
    assert LiteLLM(name="openai/x", fallbacks=["ollama/y"]).trouble() is None
    other = LiteLLM(name="openai/x", api_key="k", small="groq/y")
    with pytest.raises(ModelAway) as caught:
        await other.ask(prompt("hi", model="groq/y"))
    assert (caught.value.cause, caught.value.hint) == ("credentials", cure("groq/y"))
    assert "GROQ_API_KEY" in caught.value.hint
