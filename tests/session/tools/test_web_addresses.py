"""What may be asked for on the web, and which machines count as public."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.errors import ToolError
from session.tools.web.fetching import followed, is_public, target_of
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "security",
    "`web_fetch` reads only public pages, whatever a name or redirect says, and quotes their text.",
)

PUBLIC = ("93.184.216.34", "1.1.1.1", "2606:2800:220:1::1", "64:ff9b::5db8:d822", "::ffff:93.184.216.34")
CLOSED = (
    "127.0.0.1", "127.255.1.2", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192", "198.18.0.1", "224.0.0.1", "239.1.1.1",
    "240.0.0.1", "255.255.255.255", "168.63.129.16", "192.0.2.1",
    "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "2001::1",
    "2002:7f00:1::", "2002:a9fe:a9fe::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1",
    "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::ffff:0:127.0.0.1", "example.org", "",
)  # fmt: skip
REFUSED = (
    "http://localhost/", "http://localhost./", "http://127.0.0.1/", "http://[::1]/", "http://[::ffff:7f00:1]/",
    "http://2130706433/", "http://0x7f000001/", "http://0x7f.1/", "http://0177.0.0.1/", "http://127.1/",
    "http://1.2.3/", "http://example.0x7f/", "http://169.254.169.254/latest/meta-data/",
    "http://[fe80::1%25eth0]/",
    "http://router/", "http://2852039166/", "https://user@example.org/", "https://user:pw@example.org/",
    "https://:pw@example.org/", "ftp://example.org/", "file:///etc/passwd", "gopher://example.org/",
    "//example.org/",
    "example.org", "javascript:alert(1)", "data:text/html,x", "http://", "http:///x", "http://example.org:22/",
    "http://example.org:6379/", "http://example.org:8006/", "http:\\\\example.org/", "http://example.org\\@evil.org/",
    "http://exa mple.org/", "http://example.org/\r\nHost: evil", "http://example.org/\x00", "http://%31%32%37.0.0.1/",
    "http://１２７.0.0.1/", "http://[::1", "http://[v1.a]/", "http://example.org/" + "a" * 5000, "",
)  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_of_the_public_internet(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", CLOSED)
def test_an_address_that_is_none(address: str) -> None:
    assert not is_public(address)


@given(st.ip_addresses())
def test_no_address_is_public_that_the_standard_library_has_elsewhere(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    """A second opinion; it knows of translated addresses less than we do."""
    translated = address in ipaddress.ip_network("64:ff9b::/96") if address.version == 6 else False
    if is_public(str(address)) and not translated:
        assert not address.is_private
        assert not address.is_multicast
        assert not address.is_link_local
        assert not address.is_reserved


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_read(text: str) -> None:
    with pytest.raises(ToolError) as refused:
        target_of(text)

    assert "pw" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("https://example.org/a?q=1#part", "example.org", 443),
        (" http://Example.ORG:8080/ ", "example.org", 8080),
        ("https://bücher.example/ä", "xn--bcher-kva.example", 443),
        ("http://93.184.216.34/", "93.184.216.34", 80),
        ("http://[2606:2800:220:1::1]/", "2606:2800:220:1::1", 80),
    ],
)
def test_what_is_read(text: str, host: str, port: int) -> None:
    target = target_of(text)

    assert (target.host, target.port) == (host, port)
    assert "?" not in target.shown
    assert "#" not in str(target.url)


@pytest.mark.parametrize(
    ("location", "there"),
    [
        ("/b?c", "https://example.org/b?c"),
        ("c", "https://example.org/a/c"),
        ("//other.example/x", "https://other.example/x"),
        ("https://other.example:8443/", "https://other.example:8443/"),
    ],
)
def test_where_a_redirect_leads(location: str, there: str) -> None:
    assert str(followed(target_of("https://example.org/a/b"), location).url) == there
