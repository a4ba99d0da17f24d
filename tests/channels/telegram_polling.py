"""What tests of the polling of Telegram share."""

from __future__ import annotations

ADA, BOB = 101, 102
