"""Which addresses of the web may be asked for, and which machines answer for the public; pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

import httpx

from session.errors import ToolError

PORTS: Final = {"http": 80, "https": 443}
ALLOWED_PORTS: Final = (80, 443, 8080, 8443)
MAX_URL_CHARS: Final = 4096

_V4_CLOSED = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",
            # A public address by which a provider tells its virtual machines about themselves.
            "168.63.129.16/32",
        ),
    )
)
_V6_OPEN = ipaddress.IPv6Network("2000::/3")
# Among them what carries an address of version 4 within: whoever unpacks it reaches that.
_V6_CLOSED = tuple(
    map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "2620:4f:8000::/48"))
)
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
# Networks without version 4 reach all of it so.
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
_NUMBER = re.compile(r"(?:\d+|0x[0-9a-f]*)\.?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Target:
    """One address of the web, checked but for where its name leads; ``host`` is a name or an address."""

    url: httpx.URL
    host: str
    port: int

    @property
    def shown(self) -> str:
        """The address without its query and fragment, which may hold what is nobody's business."""
        return str(self.url.copy_with(query=None, fragment=None))


def target_of(text: str) -> Target:
    """Read an address.

    Raises:
        ToolError: it is none, or one that may not be asked for.
    """
    if len(text) > MAX_URL_CHARS:
        raise ToolError(f"the address is over {MAX_URL_CHARS} characters")
    if "\\" in text or any(not c.isprintable() or c.isspace() for c in text.strip()):
        raise ToolError("the address contains characters that are not allowed")
    try:
        url = httpx.URL(text.strip())
        host = url.raw_host.decode("ascii").lower()
    except (httpx.InvalidURL, UnicodeError, ValueError) as error:
        raise ToolError("this is not a web address") from error
    if url.scheme not in PORTS:
        raise ToolError("only http:// and https:// can be read")
    if url.userinfo:
        raise ToolError("addresses with a user name or password are not allowed")
    if not host or "%" in host:
        raise ToolError("the address has no host")
    port = url.port or PORTS[url.scheme]
    if port not in ALLOWED_PORTS:
        raise ToolError(f"port {port} is not allowed; only {', '.join(map(str, ALLOWED_PORTS))} are")
    _check_name(host)
    return Target(url.copy_with(fragment=None), host, port)


def followed(target: Target, location: str) -> Target:
    """Return where a redirect leads, checked as any other address.

    Raises:
        ToolError: it may not be followed.
    """
    try:
        joined = str(target.url.join(location))
    except (httpx.InvalidURL, ValueError) as error:
        raise ToolError(f"{target.host} redirects to an invalid address") from error
    there = target_of(joined)
    if target.url.scheme == "https" and there.url.scheme != "https":
        raise ToolError(f"{target.host} redirects from https to http, which is not followed")
    return there


def is_public(address: str) -> bool:
    """Say whether an address is one of the public internet: not private, local, reserved or for many."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _MAPPED or ip in _TRANSLATED:
            ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        else:
            return ip in _V6_OPEN and not any(ip in closed for closed in _V6_CLOSED) and ip.scope_id is None
    return not any(ip in closed for closed in _V4_CLOSED)


def refused_host(host: str) -> ToolError:
    """Say that a host is not of the public internet; never which address it has."""
    return ToolError(f"{host} is not on the public internet, so it is not allowed")


def _check_name(host: str) -> None:
    """Refuse what can be no public name; addresses that are written in odd ways, too."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        if not is_public(host):
            raise refused_host(host)
        return
    labels = host.removesuffix(".").split(".")
    # The system reads 2130706433, 0x7f.1 and 0177.0.0.1 as addresses.
    if ":" in host or _NUMBER.fullmatch(labels[-1]) or len(labels) < 2:
        raise refused_host(host)
