"""How a server of the Model Context Protocol fails.

::

    ServerFailed        the server is of no use any more as it is: it is ended and started again
    ├── ServerGone      it ended, or its connection did
    └── Flooded         it sent more than anybody asked for
    CallFailed          one call came to nothing; the server may be well
    └── CallLate        it did not answer in time
"""

from __future__ import annotations

from session.errors import SessionError


class ServerFailed(SessionError):
    """The server is of no use as it is; ``str`` says why without a secret, for chat, log and status.

    ``stderr`` is the end of what its process wrote there, without secrets, for its operator and no log;
    ``cure`` is the likely one for that.
    """

    stderr = ""
    cure = ""

    @property
    def detail(self) -> str:
        """Why, with what the process wrote."""
        return f"{self}; it wrote: {self.stderr}" if self.stderr else str(self)


class ServerGone(ServerFailed):
    """It ended, or its connection did."""


class Flooded(ServerFailed):
    """It sent more than anybody asked for."""


class CallFailed(SessionError):
    """A call came to nothing; ``str`` is a sentence for the model."""


class CallLate(CallFailed):
    """The server did not answer in time; whether it did what it was asked nobody knows."""
