"""The errors of the gateway package.

::

    GatewayError                 exit_code says how the command ends
    ├── ConfigError              78  all problems at once
    ├── StateInUse               73  another gateway uses the workspace
    ├── NewerState               78  a file in state/ was written by a newer version
    ├── EarlierState             78  a development version before 0.1.0 wrote the state folder
    ├── SendLogDown                  what a platform accepted cannot be recorded; nothing may be sent
    ├── Unreachable              69  broker, daemon or model does not answer
    └── MailboxError
        ├── MailboxDown              not confirmed: the outcome is unknown, put again under the same id
        ├── LetterLost               the acknowledgement has become impossible; the letter comes again
        └── TopologyMismatch     78  the broker's partitions are not ours
"""

from __future__ import annotations

from durable import HintedError, NewerVersion


class GatewayError(HintedError):
    """Base of this package's errors; ``exit_code`` is for the shell."""

    exit_code = 1


class ConfigError(GatewayError):
    """The configuration cannot be used; ``problems`` holds one line for each fault."""

    exit_code = 78

    def __init__(self, problems: list[str], *, hint: str = "chat-gateway config check") -> None:
        super().__init__("\n".join(problems), hint=hint)
        self.problems = problems


class StateInUse(GatewayError):
    """Another process holds this state folder."""

    exit_code = 73


class NewerState(NewerVersion, GatewayError):
    """A state file carries a version that this program does not know."""

    exit_code = 78


class EarlierState(GatewayError):
    """The state folder was written by a development version whose files this one does not read."""

    exit_code = 78


class Unreachable(GatewayError):
    """A server that is needed does not answer, or another gateway reaches it where this one does not."""

    exit_code = 69


class SendLogDown(GatewayError):
    """The send log cannot be written or read now; nothing of the request is stored."""


class MailboxError(GatewayError):
    """Base of what a mailbox raises."""


class MailboxDown(MailboxError):
    """Not confirmed: the letter may or may not be stored. Put it again under the same id."""


class LetterLost(MailboxError):
    """The letter can no longer be settled here; it will be delivered again, perhaps elsewhere."""


class TopologyMismatch(MailboxError):
    """The broker was set up with another number of partitions."""

    exit_code = 78
