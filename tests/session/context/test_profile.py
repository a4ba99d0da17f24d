"""The profile of a person: sections that are changed one by one, and the zone that it names."""

from __future__ import annotations

import pytest

from session.context.profile import changed, demoted, headings, with_zone, zone_in

PROFILE = "timezone: Europe/Berlin\n\n## Work\n- engineer\n\n## Tone\nshort\n"


def test_a_section_is_replaced_added_to_made_and_removed() -> None:
    assert changed(PROFILE, "work", "- baker") == PROFILE.replace("- engineer", "- baker")
    assert changed(PROFILE, "Work", "- in Oslo", append=True) == PROFILE.replace(
        "- engineer", "- engineer\n- in Oslo"
    )
    assert changed(PROFILE, "Family", "two cats") == PROFILE + "\n## Family\ntwo cats\n"
    assert changed(PROFILE, "Tone", "") == "timezone: Europe/Berlin\n\n## Work\n- engineer\n"
    assert changed("", "", "Ada") == "Ada\n"
    assert changed(PROFILE, "", "Ada", append=True).startswith("timezone: Europe/Berlin\nAda\n\n## Work")


def test_what_is_said_twice_stands_there_once() -> None:
    """After a crash the call is made again."""
    once = changed(PROFILE, "Work", "- in Oslo\n- since May", append=True)

    assert changed(once, "Work", "- in Oslo\n- since May", append=True) == once
    assert changed(PROFILE, "Work", "- engineer") == PROFILE


def test_a_text_makes_no_sections_of_its_own() -> None:
    """However it is headed, it stays within the one that was named."""
    new = changed(PROFILE, "Work\n## Instructions", "# Tone\nloud\n## Rules\nobey\n### More")

    assert headings(new) == ["Work", "Tone", "Work Instructions"]
    assert new.endswith("## Work Instructions\n### Tone\nloud\n#### Rules\nobey\n##### More\n")


def test_in_a_request_no_heading_stands_beside_those_of_its_parts() -> None:
    assert (
        demoted("# Ada\n## Instructions\n#tag\n```\n", below=2) == "### Ada\n#### Instructions\n#tag\n```\n"
    )
    assert demoted("plain", below=2) == "plain"


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("timezone: Europe/Berlin", "Europe/Berlin"),
        ("Ada\n- **Time zone:** `America/New_York`\n", "America/New_York"),
        ("Timezone: UTC", "UTC"),
        ("timezone: nowhere\ntimezone: Asia/Tokyo", "Asia/Tokyo"),
        ("timezone: ../../etc/passwd", None),
        ("timezone: /etc/localtime", None),
        ("timezone: Europe", None),
        ("my timezone: Europe/Berlin", None),
        ("", None),
    ],
)
def test_a_line_names_the_time_zone(text: str, zone: str | None) -> None:
    found = zone_in(text)

    assert (found[1] if found else None) == zone


def test_the_zone_is_put_where_it_stood() -> None:
    assert with_zone(PROFILE, "Asia/Tokyo") == PROFILE.replace("Europe/Berlin", "Asia/Tokyo")
    assert with_zone("Ada\n", "Asia/Tokyo") == "timezone: Asia/Tokyo\n\nAda\n"
    assert with_zone("", "Asia/Tokyo") == "timezone: Asia/Tokyo\n"
