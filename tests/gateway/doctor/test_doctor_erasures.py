"""What doctor says of an erasure that was begun."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gateway.app.erasure import Erasure
from gateway.app.sessions import build_session_services
from gateway.config.settings import Settings
from gateway.doctor.checks import examine
from gateway.doctor.finding import Check
from session.kept.erasing import Owed


async def erasures(settings: Settings) -> list[Check]:
    return [check async for check in examine(settings) if check.name == "erasures"]


async def test_doctor_names_an_erasure_that_is_not_whole(tmp_path: Path) -> None:
    """Of a chat and of a person, each with the command that ends it; nothing when it has ended."""
    settings = Settings.model_validate({"workspace": tmp_path, "people": {"ada": ["web:ada"]}})
    before = await erasures(settings)
    services = build_session_services(settings, status=lambda *_: [])
    erasure = Erasure(settings, services, mailbox=None)
    owed = Owed(settings.state)
    owed.keep(await erasure.subject(key="web:bob"))
    owed.keep(await erasure.subject(person="ada"))
    begun = await erasures(settings)
    await erasure.finish()
    await services.aclose()

    assert [check.level for check in before] == ["ok"]
    assert {(check.level, check.cure.partition(";")[0]) for check in begun} == {
        ("warn", "chat-gateway memory erase web:bob --yes"),
        ("warn", "chat-gateway memory erase --person ada --yes"),
    }
    assert await erasures(settings) == before


async def test_doctor_says_how_an_order_goes_that_nothing_can_carry_out(tmp_path: Path) -> None:
    """A version before this one wrote it for a key that is not UTF-8."""
    settings = Settings.model_validate({"workspace": tmp_path})
    services = build_session_services(settings, status=lambda *_: [])
    subject = await Erasure(settings, services, mailbox=None).subject(key="cli:any")
    await services.aclose()
    Owed(settings.state).keep(replace(subject, name="cli:M\udcfcller"))

    (check,) = await erasures(settings)
    (tmp_path / check.cure.partition(":")[0].removeprefix("delete ")).unlink()

    assert check.level == "warn"
    assert [check.level for check in await erasures(settings)] == ["ok"]
