"""TLS to a real RabbitMQ: who is trusted, who is let in, and what is said where they do not agree."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.certificates import Authority
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, answer_to, command
from tests.support.ports import KeptPort

pytestmark = guarantee("security", "A broker without a trusted certificate receives no password.")


@dataclass(frozen=True)
class Secured:
    """A broker that speaks TLS and asks for a certificate, with the files of those who use it."""

    broker: Broker
    url: str
    authority: Authority
    other: Authority

    def config(self, **changed: object) -> dict[str, object]:
        """The configuration of a gateway that is let in, but for what is changed."""
        cert, key = self.authority.issue("gateway")
        config: dict[str, object] = {
            "broker.url": self.url,
            "broker.ca_file": str(self.authority.certificate),
            "broker.cert_file": str(cert),
            "broker.key_file": str(key),
        }
        return config | {f"broker.{name}": value for name, value in changed.items()}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    authority, other = Authority(folder / "ours"), Authority(folder / "others", "another authority")
    cert, key = authority.issue("broker", alternative="IP:127.0.0.1")
    port = KeptPort()
    lines = (
        f"listeners.ssl.1 = 127.0.0.1:{port.port}",
        f"ssl_options.cacertfile = {authority.certificate}",
        f"ssl_options.certfile = {cert}",
        f"ssl_options.keyfile = {key}",
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = true",
    )
    with Broker(config=lines) as broker:
        yield Secured(broker, f"amqps://guest:guest@127.0.0.1:{port.port}/", authority, other)
    port.close()


async def broker_check(secured: Secured, workspace: Path, **changed: object) -> str:
    """What ``doctor`` says of the broker, with its cure."""
    _, said = await command(workspace, "doctor", config=secured.config(**changed))
    lines = said.splitlines()
    at = next(place for place, line in enumerate(lines) if "  broker: " in line)
    return "\n".join(lines[at : at + 2])


async def test_a_gateway_works_over_tls_in_roles(secured: Secured, tmp_path: Path) -> None:
    """With the authority's certificate and one of its own, a message is answered."""
    async with Daemon(tmp_path, role="session", config=secured.config()) as daemon:
        answer = await answer_to(daemon, "web:ada", "1", "hello")

    assert answer["reply"] == "echo: hello"


async def test_the_end_of_the_brokers_certificate_is_told(secured: Secured, tmp_path: Path) -> None:
    """A month before, `doctor` warns: that of the tests is valid for two days. The clocks are compared."""
    config = secured.config()
    _, out = await command(tmp_path, "doctor", "--json", config=config)

    found = json.loads(out)
    (broker,) = (each for each in found if each["name"] == "certificates")
    assert broker["level"] == "warn"
    assert "the broker's certificate is valid until 20" in broker["text"]
    assert broker["cure"] == "renew it on the broker"
    assert {"name": "clock", "level": "ok", "text": "within 30 s of the broker's", "cure": ""} in found
    (version,) = (each for each in found if each["name"] == "broker version")
    assert (version["level"], version["text"].startswith("RabbitMQ 3.")) == ("ok", True)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            lambda its: {"ca_file": str(its.other.certificate)},
            ("fail", "the broker's certificate is not trusted", "broker.ca_file"),
        ),
        # A self-made certificate is not among the machine's own.
        (lambda _: {"ca_file": ""}, ("the broker's certificate is not trusted",)),
        (lambda _: {"cert_file": "", "key_file": ""}, ("fail", "broker.cert_file and broker.key_file")),
        # It is the host of `broker.url` that the certificate has to name.
        (
            lambda its: {"url": its.url.replace("127.0.0.1", "localhost")},
            ("the broker's certificate is not trusted", "as the broker's certificate does"),
        ),
        (
            lambda its: {"url": its.broker.url.replace("amqp:", "amqps:")},
            ("the broker does not speak TLS there",),
        ),
    ],
    ids=["another authority", "no authority", "no certificate of its own", "another name", "no TLS"],
)
async def test_what_does_not_agree_is_refused_and_the_key_to_correct_is_named(
    secured: Secured, tmp_path: Path, changed: Callable[[Secured], dict[str, str]], words: tuple[str, ...]
) -> None:
    said = await broker_check(secured, tmp_path, **changed(secured))

    assert [part for part in words if part not in said] == []


async def test_files_that_cannot_be_used_are_named(secured: Secured, tmp_path: Path) -> None:
    """A missing file, and one that is no certificate."""
    text = tmp_path / "text.pem"
    text.write_text("no certificate")

    missing = await broker_check(secured, tmp_path / "one", ca_file=str(tmp_path / "gone.pem"))
    wrong = await broker_check(secured, tmp_path / "two", cert_file=str(text))

    assert "gone.pem: No such file or directory" in missing
    assert f"{text} with its key" in wrong
