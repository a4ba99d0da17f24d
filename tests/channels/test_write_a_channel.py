"""The adapter of ``docs/write-a-channel.md`` works as it stands there."""

from __future__ import annotations

import functools
import re
import sys
import types
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from channels import plugins
from channels.base import Kind, Pulse, Site
from channels.errors import CredentialsRefused
from tests.channels.parrot_server import TOKEN, parrot_server
from tests.support.guarantee import guarantee

pytestmark = guarantee("interfaces", "All channel adapters fulfil the same contract.")

PAGE = Path(__file__).parents[2] / "docs" / "write-a-channel.md"
PACKAGE, ADAPTER, CONTRACT = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def module(name: str, source: str, **names: object) -> types.ModuleType:
    """Make a module of a block of the page."""
    made = sys.modules[name] = types.ModuleType(name)
    made.__dict__.update(names)
    exec(compile(source, name, "exec"), made.__dict__)
    return made


package = module("chat_gateway_parrot", PACKAGE, __path__=[])
adapter = module("chat_gateway_parrot.adapter", ADAPTER)
contract = module("chat_gateway_parrot.contract", CONTRACT)


class TestParrot(contract.TestParrot):  # type: ignore[name-defined,misc]
    """The contract class of the page, over the server of this folder."""

    @pytest.fixture(autouse=True)
    def server(self, tmp_path: Path) -> None:
        contract.parrot_server = functools.partial(parrot_server, tmp_path)  # type: ignore[attr-defined]


def test_it_is_found_by_its_entry_point() -> None:
    """The group and the object that the page names lead to the adapter, with its own table."""
    declared = re.search(r'entry-points\."(.+?)"\]\n(\w+) = "(.+?)"', PAGE.read_text())
    assert declared is not None
    group, name, value = declared.groups()
    assert group == plugins.GROUP

    found = plugins.look([EntryPoint(name, value, group)])

    assert found.problems == ()
    assert found.tables() == {"parrot": package.Parrot}
    kind = found.kinds["parrot"]
    assert isinstance(kind, Kind)
    table = package.Parrot(enabled=True, token=TOKEN)
    assert plugins.build(kind, table, Site(Path(), Pulse(), {})).name == "parrot"


async def test_a_wrong_token_is_one_clear_error(tmp_path: Path) -> None:
    """It says what only a person can mend."""
    async with parrot_server(tmp_path) as server:
        table = package.Parrot(enabled=True, token="wrong", url=server.url)
        channel = adapter.build(table, Site(tmp_path, Pulse(), {}))
        with pytest.raises(CredentialsRefused):
            await channel.typing("ada")
        await channel.aclose()
