"""A masked recording has the shape of what was said, and nothing of what or by whom."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gateway.recording import letter
from gateway.recording.masking import hidden_text, masked
from tests.gateway.recording.test_recording_file import asked, recording
from tests.support.examples import drawn


def test_no_word_name_or_id_is_in_the_file(tmp_path: Path) -> None:
    secret = asked(
        "my PIN is 1234, Zoë", key="telegram:55501", sender="Lovelace", reply="noted", files=["pin.jpg"]
    )

    letter.write(tmp_path / "day", masked(recording(secret)))

    written = (tmp_path / "day").read_text()
    for word in ("PIN", "1234", "Zo", "55501", "Lovelace", "noted", "pin", "workspace"):
        assert f"{word}" not in written.replace('"workspace":""', "")
    (one,) = letter.read(tmp_path / "day").letters
    assert (one.text, one.reply) == ("xx xxx xx 0000, xxx", "xxxxx")
    assert one.outcome == secret.outcome


def test_who_is_the_same_stays_the_same_within_one_recording_alone() -> None:
    letters = [asked(key="telegram:1"), asked(key="discord:1", sender="Bob"), asked(key="telegram:1")]

    one, other = masked(recording(*letters)).letters, masked(recording(*letters)).letters

    assert one[0].key == one[2].key != one[1].key
    assert one[0].sender == one[2].sender != one[1].sender
    assert [each.key.partition(":")[0] for each in one] == ["telegram", "discord", "telegram"]
    assert one[0].key != other[0].key
    assert len({each.id for each in one}) == 3


def test_a_channel_of_somebody_elses_program_is_not_named() -> None:
    (one,) = masked(recording(asked(key="lovelace_home:1"))).letters

    assert one.key.partition(":")[0] == "other"


def test_commands_of_ours_stay_with_a_number_alone() -> None:
    assert hidden_text("/new") == "/new"
    assert hidden_text("/resume 2") == "/resume 2"
    assert hidden_text("/compact the wedding") == "/compact xxx xxxxxxx"
    assert hidden_text("/wedding") == "/xxxxxxx"
    assert hidden_text("/newer plans") == "/xxxxx xxxxx"
    assert hidden_text(" /new@ada_bot") == " /new@xxx_xxx"
    assert hidden_text("/compact 1234") == "/compact 0000"


@drawn(200)
@given(st.text())
def test_of_any_text_no_letter_and_no_digit_stays(text: str) -> None:
    hidden = hidden_text(f"> {text}")

    assert len(hidden) == len(text) + 2
    assert not any(char.isalpha() and char != "x" for char in hidden)
    assert not any(char.isdigit() and char != "0" for char in hidden)
    assert hidden.isascii()
