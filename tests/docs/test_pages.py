"""Every page renders; its code is what it says to be, its commands, keys and the ends of its links exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from gateway.config.load import load
from tests.docs.page import faults, is_ours, parse, read
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "interfaces", "The documentation matches the program in every setting, route, command and example."
)

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_is_sound(path: Path) -> None:
    assert faults(read(path)) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```tmol\na = 1\n```\n", "unknown language"),
        ("```toml\na = \n```\n", "not toml"),
        ("```toml\n[http]\nprot = 1\n```\n", "http.prot"),
        ("```toml\n[channels.telegram]\ntokem = 'x'\n```\n", "channels.telegram.tokem"),
        ("```json\n{a: 1}\n```\n", "not json"),
        ('```jsonl\n{"a": 1}\n{"a"\n```\n', "not jsonl"),
        ("```python\ndef\n```\n", "not python"),
        ("text\n\n```\nnever closed\n", "never closed"),
        ("```\n## Heading\n```toml\na = 1\n```\n", "fence within a fence"),
        ("```\nchat-gateway sesions list\n```\n", "sesions"),
        ("    chat-gateway cron add --evry 2h --message hi\n", "evry"),
        ("    chat-gateway sessions exprot [--to FORMAT]\n", "exprot"),
        ("```sh\nFOO=1\nchat-gateway run --role al\n```\n", "--role"),
        ("```\nchat-gateway sessions list\n```\n", "a block of sh"),
        ("say `chat-gateway sesions list`\n", "sesions"),
        ("say `chat-gateway sessions exprot KEY`\n", "exprot"),
        ("[x](nowhere.md)\n", "link to nothing"),
        ("![x](nowhere.png)\n", "link to nothing"),
        ("# One\n\n[x](#two)\n", "no heading"),
        ("![](README.md)\n", "without words"),
        ("| a | b |\n|---|---|\n| `x|y` | z |\n", "other than 2 cells"),
        ("- a\n  - b\n", "four spaces"),
        ("1. a\n\n   ```sh\n   ls\n   ```\n", "four spaces"),
        ("words\n- a\n", "a blank line"),
        ("1. a\n\n    words\n2. b\n", "a blank line"),
    ],
)
def test_what_is_wrong_is_found(text: str, fault: str) -> None:
    """Each kind of fault is named, once."""
    (found,) = faults(parse(text, ROOT / "page.md"))

    assert fault in found


@pytest.mark.parametrize("folder", ["docs", "docs/decisions"])
def test_the_index_of_a_folder_lists_every_page(folder: str) -> None:
    index = ROOT / folder / "README.md"

    listed = {(index.parent / link.partition("#")[0]).resolve() for link in read(index).links}
    assert {path for path in PAGES if path.parent == index.parent} - {index} - listed == set()


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 700


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_its_configuration_is_loaded(path: Path, tmp_path: Path) -> None:
    """Each piece of a configuration is one to start with, once the files that it names are there."""
    for number, code in enumerate(read(path).code):
        # The parrot's table comes with its package; tests/channels/test_write_a_channel.py loads it.
        if code.language != "toml" or "channels.parrot" in code.text or not is_ours(tomllib.loads(code.text)):
            continue
        file = tmp_path / f"{number}.toml"
        file.write_text(re.sub(r'(?<=")/(?=etc/)', f"{tmp_path}/", code.text))
        for named in re.findall(rf'"({tmp_path}/[^"]+)"', file.read_text()):
            Path(named).parent.mkdir(parents=True, exist_ok=True)
            Path(named).write_text("a-secret-of-the-page-0123456789")

        assert load(file, tmp_path, given(tmp_path, code.text)) is not None, code.text


def given(folder: Path, text: str) -> dict[str, str]:
    """Return the environment of a service: platforms whose token no file has get it from systemd."""
    for name, table in tomllib.loads(text).get("channels", {}).items():
        if table.get("enabled") and not table.keys() & {"token", "token_file"}:
            (folder / f"channels.{name}.token").write_text("a-secret-of-the-page-0123456789")
    return {"CREDENTIALS_DIRECTORY": str(folder)}
