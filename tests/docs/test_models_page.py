"""The page of models: each block is a sound configuration, and LiteLLM knows its provider and its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.onboard import PROVIDERS
from gateway.config.checking import faults, unknown_provider
from gateway.config.load import load
from session.models import credentials
from tests.docs.page import read
from tests.support.harness import ROOT

BLOCKS = [code.text for code in read(ROOT / "docs" / "models.md").code if code.language == "toml"]


@pytest.mark.parametrize("block", BLOCKS, ids=[text.split('"')[1].partition("/")[0] for text in BLOCKS])
def test_a_block_is_accepted(block: str, tmp_path: Path) -> None:
    """`config check` finds nothing wrong, and LiteLLM gives the model to that provider."""
    import litellm

    file = tmp_path / "config.toml"
    file.write_text(block.replace("/etc/chat-gateway/", ""))
    (tmp_path / "model-key").write_text("a-key")

    settings = load(file, tmp_path / "w", {}, also=faults)

    _, provider, _, _ = litellm.get_llm_provider(settings.model.name)
    assert provider == settings.model.name.partition("/")[0]


def test_onboard_offers_what_the_page_has() -> None:
    assert [one.prefix for one in PROVIDERS] == [text.split('"')[1].partition("/")[0] for text in BLOCKS]
    for one, block in zip(PROVIDERS, BLOCKS, strict=True):
        assert f'name = "{one.model(one.example)}"' in block
        assert (f'api_base = "{one.api_base}"' in block) == bool(one.api_base)


def test_the_providers_are_those_of_litellm() -> None:
    import litellm

    names = {str(getattr(each, "value", each)) for each in litellm.provider_list}
    assert names == credentials.PROVIDERS
    assert unknown_provider("gpt-4.1-mini") == ""
