"""The redactor: no spelling of a known secret gets through, and ordinary text does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from gateway.config.load import load
from gateway.config.redact import Redactor, secrets_of
from gateway.config.settings import Settings

TELEGRAM = "123456789:AAF-abc_defghijklmnopqrstuvwxyz12345"


def planted() -> Settings:
    """A configuration with something in every secret key."""
    return load(
        Path(os.devnull),
        None,
        {
            "CHAT_GATEWAY_BROKER__URL": "amqp://ada:br0ker%2Fpass@host/",
            "CHAT_GATEWAY_STATE__URL": "postgresql://ada:st4te-pass@host/",
            "CHAT_GATEWAY_CHANNELS__TELEGRAM__TOKEN": TELEGRAM,
            "CHAT_GATEWAY_CHANNELS__DISCORD__TOKEN": "discord.secret.token",
            "CHAT_GATEWAY_MODEL__API_KEY": "sk-model-secret",
            "CHAT_GATEWAY_HTTP__TOKEN": "http-secret-token",
        },
    )


def test_every_secret_of_the_configuration_is_known() -> None:
    """Each SecretStr of the tree, and the passwords within the addresses of broker and state database."""
    assert secrets_of(planted()) == {
        "broker.url": "br0ker/pass",
        "state.url": "st4te-pass",
        "channels.telegram.token": TELEGRAM,
        "channels.discord.token": "discord.secret.token",
        "model.api_key": "sk-model-secret",
        "http.token": "http-secret-token",
    }


def test_secrets_go_from_text_and_errors() -> None:
    """Wherever one stands, three stars remain."""
    redactor = Redactor.of(planted(), {})

    assert redactor.text(f"GET /bot{TELEGRAM}/getMe") == "GET /bot***/getMe"
    assert redactor.text(f"GET /bot{quote(TELEGRAM, safe='')}/getMe") == "GET /bot***/getMe"
    assert redactor.text("br0ker/pass br0ker%2Fpass") == "*** ***"
    assert redactor.text(f"only {TELEGRAM.partition(':')[2]}") == "only ***"
    try:
        try:
            raise ValueError("sk-model-secret")
        except ValueError as cause:
            raise RuntimeError(f"call failed: {TELEGRAM}") from cause
    except RuntimeError as error:
        shown = redactor.error(error)
    assert "ValueError: ***" in shown
    assert "RuntimeError: call failed: ***" in shown


def test_keys_of_providers_come_from_the_environment() -> None:
    """LiteLLM reads them there, so nobody has to configure them to have them hidden."""
    redactor = Redactor.of(
        None,
        {
            "OPENAI_API_KEY": "sk-from-environment",
            "HF_TOKEN": "hf_abcdefgh",
            "X_TOKEN": "short",
            "HOME": "/home/ada-lovelace",
        },
    )

    assert (
        redactor.text("sk-from-environment hf_abcdefgh short /home/ada-lovelace")
        == "*** *** short /home/ada-lovelace"
    )


def test_a_password_in_any_address_is_hidden() -> None:
    """Also one that no configuration names, such as a proxy's."""
    redactor = Redactor({})

    assert redactor.text("via http://ada:unknown@proxy:3128/ and https://host:80/a@b") == (
        "via http://ada:***@proxy:3128/ and https://host:80/a@b"
    )


def test_short_secrets_are_whole_words_or_named_as_unguarded() -> None:
    """A password that is a piece of ordinary words must not black them out."""
    redactor = Redactor({"broker.url": "guest", "http.token": "abc", "model.api_key": ""})

    assert redactor.text("guest guests 'guest' abc") == "*** guests '***' abc"
    assert redactor.unguarded == ("http.token",)


def test_of_two_secrets_the_longer_goes_first() -> None:
    """One that begins another leaves nothing of it behind."""
    redactor = Redactor({"a": "secret-one", "b": "secret-one-and-more"})

    assert redactor.text("secret-one-and-more, secret-one") == "***, ***"


printable = st.text(
    st.characters(min_codepoint=33, max_codepoint=126) | st.just("\u00e4"), min_size=6, max_size=40
)


@given(secret=printable, around=st.text(max_size=10))
def test_no_spelling_of_a_secret_gets_through(secret: str, around: str) -> None:
    """Plain, in an address, in JSON, in a repr, in JSON within JSON."""
    redactor = Redactor({"it": secret})
    once = json.dumps({"x": around + secret})

    for text in (
        around + secret + around,
        f"https://host/{quote(secret, safe='')}",
        once,
        json.dumps(once),
        repr(secret),
        repr({"x": [secret]}),
    ):
        clean = redactor.text(text)
        assert "***" in clean
        if secret not in around and secret not in "https://host/":
            assert secret not in clean.replace("***", "\0")
