"""What a broker says when it refuses a client, in words, with the command that cures it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

_NO_RIGHT = re.compile(
    r"access to (?P<kind>\w+) '(?P<name>[^']*)' in vhost '(?P<vhost>[^']*)' "
    r"refused for user '(?P<user>[^']*)'"
)
_NO_LOGIN = re.compile(
    r"ACCESS_REFUSED.*Login was refused|PLAIN login refused|user '[^']*' can only connect via"
)
_NO_ROOM = re.compile(r"queue limit in (?:vhost '(?P<vhost>[^']*)'|cluster) \((?P<most>\d+)\) is reached")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a broker refuses, without secrets, and the cure; ``full``: for a limit that is reached."""

    text: str
    hint: str
    full: bool = False


def refusal(said: str, url: str) -> Refusal | None:
    """Read what the broker said; None where it is no refusal that we know."""
    if found := _NO_RIGHT.search(said):
        return Refusal(
            f"user '{found['user']}' may not use {found['kind']} '{found['name']}' "
            f"in virtual host '{found['vhost']}'",
            _permit(found["vhost"], found["user"]),
        )
    if found := _NO_ROOM.search(said):
        vhost, most = found["vhost"], found["most"]
        where = "the broker" if vhost is None else f"virtual host '{vhost}'"
        return Refusal(
            f"{where} has as many queues as its limit allows: {most}",
            "raise cluster_queue_limit in rabbitmq.conf"
            if vhost is None
            else f"rabbitmqctl clear_vhost_limits -p {vhost}, or set_vhost_limits to more",
            full=True,
        )
    if _NO_LOGIN.search(said):
        user = unquote(urlsplit(url).username or "guest")
        only = "; guest may log in on the broker's own machine alone" if user == "guest" else ""
        return Refusal(
            f"the broker refuses user '{user}', or the password{only}",
            f"correct user and password in broker.url, or: rabbitmqctl change_password {user} PASSWORD",
        )
    return None


def vhost_refusal(url: str) -> Refusal:
    """Say that the broker opens the virtual host of ``url`` to nobody, or not to this user."""
    parts = urlsplit(url)
    vhost, user = unquote(parts.path[1:]) or "/", unquote(parts.username or "guest")
    return Refusal(
        f"user '{user}' may not use virtual host '{vhost}', or there is none of that name",
        f"rabbitmqctl add_vhost {vhost} and {_permit(vhost, user)}, or correct the end of broker.url",
    )


def _permit(vhost: str, user: str) -> str:
    return f"rabbitmqctl set_permissions -p {vhost} {user} '.*' '.*' '.*'"
