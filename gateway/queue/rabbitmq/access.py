"""Access to the broker: whom this process trusts, who it is, and in words why a broker refuses it."""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from durable import causes
from gateway.errors import MailboxDown

TLS_PORT = 5671
_ALERT_S = 2.0
_CUT = (ConnectionResetError, BrokenPipeError, EOFError)
_AUTHORITY = "broker.ca_file names the certificate of the authority that signed the broker's"
_OWN = "broker.cert_file and broker.key_file name the certificate that the broker asks for"
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


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of a connection; empty: the machine's own authorities, and no certificate of ours."""

    ca: str = ""
    cert: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """Read the files anew, so that renewed ones count from the next connection on. Blocks.

        Raises:
            MailboxDown: one of them cannot be used.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except (OSError, ssl.SSLError) as error:
            raise MailboxDown(f"{self.ca}: {_said(error)}", hint=_AUTHORITY) from error
        if self.cert:
            try:
                context.load_cert_chain(self.cert, self.key or None)
            except (OSError, ssl.SSLError) as error:
                raise MailboxDown(f"{self.cert} with its key: {_said(error)}", hint=_OWN) from error
        return context


NO_FILES = TlsFiles()


def refusal_of(error: BaseException) -> Refusal | None:
    """Read why a connection by TLS failed; None where that is not the reason."""
    for cause in (named for each in causes(error) for named in (each, *each.args)):
        if isinstance(cause, ssl.SSLCertVerificationError):
            if "hostname" in cause.verify_message.lower() or "IP address" in cause.verify_message:
                hint = "broker.url has to name the host as the broker's certificate does"
            elif "expired" in cause.verify_message or "not yet valid" in cause.verify_message:
                hint = "renew the broker's certificate, or set the clock"
            else:
                hint = _AUTHORITY
            return Refusal(f"the broker's certificate is not trusted: {cause.verify_message}", hint)
        if isinstance(cause, ssl.SSLError):
            return _handshake(cause)
    return None


async def alert_of(error: BaseException, url: str, context: ssl.SSLContext) -> ssl.SSLError | None:
    """Ask once more what a broker that cut a connection has against our certificate; None where nothing.

    By TLS 1.3 it refuses after the handshake. What we had sent by then makes its machine reset the
    connection, which drops the alert unread: whoever sends nothing hears it.
    """
    if refusal_of(error) is not None or not any(isinstance(cause, _CUT) for cause in causes(error)):
        return None
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(_ALERT_S):
            reader, writer = await asyncio.open_connection(
                parts.hostname, parts.port or TLS_PORT, ssl=context
            )
            try:
                await reader.read(1)
            finally:
                writer.transport.abort()
    except ssl.SSLError as alert:
        return alert
    except (OSError, TimeoutError):
        pass
    return None


def _handshake(error: ssl.SSLError) -> Refusal:
    reason = (error.reason or "").replace("_", " ").lower() or "closed in the handshake"
    if "alert" in reason:
        return Refusal(f"the broker refuses our certificate, or that there is none: {reason}", _OWN)
    if "wrong version" in reason or "record layer" in reason:
        return Refusal(
            "the broker does not speak TLS there", "amqp:// in broker.url, or its port for TLS, 5671"
        )
    return Refusal(f"TLS to the broker fails: {reason}", _AUTHORITY)


def _said(error: OSError) -> str:
    return (error.strerror or str(error)) if not isinstance(error, ssl.SSLError) else str(error.reason)
