"""Who may read why the model is away: people whom the operator let in, where nobody else reads along."""

from __future__ import annotations

from channels import pairing
from channels.access import is_allowed
from channels.errors import ChannelError
from channels.message import Inbound
from channels.tables import Platform
from gateway.config.settings import Settings
from gateway.turns import replies

_OWN_CLIENTS = frozenset({"web", "cli"})


class Confidants:
    """Tells letters of allowed people in their own chat from all others."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, inbound: Inbound) -> bool:
        """Say whether the chat that is answered may read a cause; a doubt is a no."""
        # The letter of a cron job does not tell who reads the chat that is answered.
        if inbound.source == "cron" or inbound.group or replies.target(inbound)[0] != inbound.key:
            return False
        if inbound.channel in _OWN_CLIENTS:
            return True
        table = getattr(self._settings.channels, inbound.channel, None)
        if not isinstance(table, Platform):
            return False
        try:
            approved = pairing.approved(self._settings.state, inbound.channel)
        except ChannelError:
            # Who was let in cannot be read now, and no cause may be told to anybody else.
            return False
        return is_allowed(inbound.sender.id, table=table, approved=approved)
