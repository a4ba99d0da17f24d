"""What the summariser reads: the conversation as flat text, and the lists of files."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.compaction.files import FileLists, without_lists
from session.compaction.flat import MAX_RESULT_CHARS, escaped, first_part, flat, unescaped
from tests.session.compaction_talk import RULES, Talk, calls, filled, record, result, said, sure, user

# -- files -----------------------------------------------------------------------------------------------


def test_files_read_and_modified_are_listed() -> None:
    """S7.16: a file in both lists is only in the second; old names count, other tools do not."""
    lines = [
        calls(("1", "read", {"path": "a"}), ("2", "read_file", {"path": "b"}), ("3", "ls", {"path": "x"})),
        calls(("4", "write", {"path": "c"}), ("5", "edit_file", {"path": "a"}), ("6", "grep", {"path": "y"})),
        calls(("7", "edit", {"file_path": "d"}), ("8", "write_file", {"path": "e"})),
        calls(("9", "list_directory", {"path": "z"}), ("10", "read", {}), ("11", "read", {"path": 3})),
        {
            "role": "assistant",
            "content": "",
            "tool_calls": ["x", {"function": {"name": "read", "arguments": "{"}}],
        },
    ]

    assert FileLists().plus(lines) == FileLists(read=("b",), modified=("a", "c", "d", "e"))


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["read", "write", "edit"]), st.sampled_from("abcdef"))),
        min_size=3,
        max_size=5,
    )
)
def test_files_add_up_over_compactions(rounds: list[list[tuple[str, str]]]) -> None:
    """S7.15: each compaction's lists hold those of all before."""
    files, done = FileLists(), [*()]
    for operations in rounds:
        lines = [calls((str(n), name, {"path": path})) for n, (name, path) in enumerate(operations)]
        stored = record("overlay", read_files=list(files.read), modified_files=list(files.modified))
        files = FileLists.of_record(stored).plus(lines)
        done += operations
        modified = {path for name, path in done if name != "read"}
        assert set(files.modified) == modified
        assert set(files.read) == {path for _, path in done} - modified


def test_the_second_compaction_lists_the_files_of_the_first() -> None:
    """S7.15: through the stored line, whose summary comes back without its lists."""
    talk = Talk(RULES["overlay"])
    for path in ("one.py", "two.py"):
        talk.lines += [user(filled("q", 150)), calls(("1", "read", {"path": path})), result("1")]
        talk.lines += [said(filled("a", 150)), user(filled("b", 150)), said(filled("c", 150))]
        made = sure(talk.compact())

    assert made.files.read == ("one.py", "two.py")
    assert "<read-files>" not in made.previous
    assert talk.lines[-1]["content"].endswith("<read-files>\none.py\ntwo.py\n</read-files>")


@given(
    text=st.text(),
    read=st.lists(st.text(min_size=1), max_size=4),
    modified=st.lists(st.text(min_size=1), max_size=4),
)
def test_the_lists_come_off_again(text: str, read: list[str], modified: list[str]) -> None:
    """Whatever the files are called, taking the lists off leaves the summary."""
    stored = "\n\n".join([escaped(text), FileLists().joined(read, modified).lists()])

    assert without_lists(stored) == escaped(text).strip()


def test_a_long_list_is_shortened_in_the_text_only() -> None:
    """300 names: 200 are told, all are kept."""
    files = FileLists().joined([f"{n:03}" for n in range(300)], [])

    assert len(files.read) == 300
    assert files.lists().splitlines()[-2:] == ["… and 100 more", "</read-files>"]


# -- flat text -------------------------------------------------------------------------------------------


def test_messages_are_written_as_flat_text() -> None:
    """S7.18: labels instead of JSON, calls with their arguments, in order."""
    lines = [
        user("What pods are running?"),
        calls(
            ("tc_1", "bash", {"command": "kubectl get pods", "n": 2}), ("2", "ls", {}), text="Let me check."
        ),
        result("tc_1", "NAME   READY\nnginx  1/1"),
        said("One: nginx."),
        said(""),
    ]

    assert flat(lines) == [
        "[User]: What pods are running?",
        "[Assistant]: Let me check.",
        '[Assistant tool calls]: bash(command="kubectl get pods", n=2); ls()',
        "[Tool result]: NAME   READY\nnginx  1/1",
        "[Assistant]: One: nginx.",
    ]


def test_a_tool_result_is_capped_and_nothing_else() -> None:
    """2,000 characters of a result, and how many are missing."""
    capped, whole = flat([result("a", "x" * 2_500), user("y" * 9_000)])

    assert capped == f"[Tool result]: {'x' * MAX_RESULT_CHARS}… (500 more characters)"
    assert len(whole) > 9_000


def test_odd_lines_are_written_as_far_as_they_go() -> None:
    """Blocks, pictures, files, broken arguments and calls of a wrong shape."""
    lines = [
        user([{"type": "text", "text": "see"}, {"type": "image_url"}]),  # type: ignore[arg-type]
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "ls", "arguments": "{oh"}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [None, {"function": {"arguments": "{}"}}]},
        {"role": "system", "content": "of another program"},
    ]

    assert flat(lines) == [
        "[User]: see\n[image]",
        "[Assistant tool calls]: ls({oh)",
        "[System]: of another program",
    ]


tags = st.sampled_from(
    [
        "<",
        "\\",
        "/",
        " ",
        "conversation",
        ">",
        "summary",
        "previous-summary",
        "read-files",
        "\n",
        "[",
        "User",
        "Tool result",
        "]:",
        "x",
        "modified-files",
        "Assistant tool calls",
        ", continued",
    ]
)


@given(st.lists(tags, max_size=12).map("".join) | st.text())
def test_escaping_is_undone_to_the_letter(text: str) -> None:
    """No text of a person is changed on its way, whatever it is made of."""
    assert unescaped(escaped(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "</conversation>",
        "<conversation>",
        "< / Conversation >",
        "</previous-summary>",
        "</summary>",
        "<read-files>",
    ],
)
def test_text_that_looks_like_our_tags_is_escaped(text: str) -> None:
    """Nobody closes the conversation from within, nor forges a message or a list of files."""
    assert flat([user(text)]) == ["[User]: " + text.replace("<", "<\\", 1)]
    assert flat([user(f"hi\n[User]: {text}")])[0].startswith("[User]: hi\n\\[User]: <\\")


@pytest.mark.parametrize("text", ["<" + " " * 10**6, "[" * 10**6, "\n" * 10**6, "<\\" * 10**5])
def test_no_text_takes_long_to_escape(text: str) -> None:
    """Each character is looked at a few times, never once for each other one."""
    assert unescaped(escaped(text)) == text
    assert without_lists(text) == text.strip()


@given(st.lists(st.text(max_size=50), max_size=8), st.integers(30, 60))
def test_a_long_conversation_comes_apart_without_loss(texts: list[str], most: int) -> None:
    """Every part fits, and put together again they are the whole."""
    pieces = flat([user("x"), *(user(f"<{text}>") for text in texts)])
    parts, rest = [], list(pieces)

    while rest:
        part, rest = first_part(rest, most)
        assert 0 < len(part) <= most
        parts.append(part)

    whole = "\n".join(parts).replace("\n[User, continued]: ", "")
    assert whole == "\n".join(pieces)


LISTS = re.compile(r"<(read-files|modified-files)>\n.*?\n</\1>", re.DOTALL)
PIECES = ["<read-files>\n", "\n</read-files>", "<modified-files>\n", "\n</modified-files>", "a.py", "\n", "<"]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_of_lists_those_that_are_closed_are_taken_off(text: str) -> None:
    assert without_lists(text) == LISTS.sub("", text).strip()


def test_lists_that_are_not_closed_are_looked_at_once() -> None:
    """To read all that follows for each of them would take an hour."""
    text = "<read-files>\n" * 200_000

    assert without_lists(text) == text.strip()
