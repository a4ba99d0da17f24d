"""What doctor says of a broker's version and clock, and of certificates before they end."""

from __future__ import annotations

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.config.settings import Broker
from gateway.doctor import broker, certificates
from tests.support.certificates import Authority


@pytest.mark.parametrize(
    ("version", "level"),
    [("3.10.8", "ok"), ("4.1.0-rc.1", "ok"), ("3.9.29", "fail"), ("2.8.7", "fail"), ("", "warn")],
)
def test_a_broker_has_to_be_new_enough(version: str, level: str) -> None:
    check = broker.of_version(version)

    assert check.level == level
    assert version in check.text
    assert bool(check.cure) == (level != "ok")


@pytest.mark.parametrize(
    ("ahead_s", "level", "words"),
    [
        (29.0, "ok", "within 30 s of the broker's"),
        (61.4, "warn", "61 s ahead of the broker's"),
        (-3600.0, "warn", "3600 s behind the broker's"),
        (None, "ok", "the broker's is not known: it said nothing"),
    ],
)
def test_the_clock_is_compared_with_the_brokers(ahead_s: float | None, level: str, words: str) -> None:
    check = broker.of_clock(ahead_s, "it said nothing")

    assert (check.level, check.text) == (level, words)


def test_the_end_of_a_certificate_is_read_as_openssl_reads_it(tmp_path: Path) -> None:
    """With two digits of the year and with four, behind the text and the key that a file may hold."""
    authority = Authority(tmp_path)
    for days in (2, 20_000):
        cert, key = authority.issue(f"c{days}", days=days)
        told = subprocess.run(
            ["openssl", "x509", "-in", cert, "-noout", "-enddate"], capture_output=True, text=True, check=True
        ).stdout.strip()
        until = datetime.fromtimestamp(ssl.cert_time_to_seconds(told.partition("=")[2]), UTC)

        assert certificates.valid_until(f"a key\n{key.read_text()}\n{cert.read_text()}") == until

    with pytest.raises(ValueError, match=r"substring|cut off|form"):
        certificates.valid_until(key.read_text())


def test_an_own_certificate_that_ends_is_told(tmp_path: Path) -> None:
    """A month before, and as a fault once it has ended; one that is not there is the broker's check's."""
    authority = Authority(tmp_path)
    levels = {}
    for days in (2, 400):
        cert, _ = authority.issue(f"c{days}", days=days)
        ((levels[days], text, cure),) = certificates.own(Broker(cert_file=str(cert)))
        assert str(cert) in text
        assert f"{datetime.now(UTC) + timedelta(days=days):%Y-%m-%d}" in text
        assert bool(cure) == (days == 2)

    assert levels == {2: "warn", 400: "ok"}
    assert certificates.own(Broker(cert_file=str(tmp_path / "gone.pem"))) == []
    assert certificates.own(Broker()) == []


def test_an_expired_certificate_is_a_fault(tmp_path: Path) -> None:
    cert, _ = Authority(tmp_path).issue("old", days=-1)

    ((level, text, _),) = certificates.own(Broker(cert_file=str(cert)))

    assert (level, "was valid until" in text) == ("fail", True)
