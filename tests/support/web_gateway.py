"""The gateway, to which ``example.test`` is a public host: ``python -m tests.support.web_gateway PORT …``.

No configuration can say so. In a process made for it the fetcher is given a resolver that knows the name, and
a connector that reaches 127.0.0.1 at ``PORT`` in its place; all else of it is the product's.
"""

from __future__ import annotations

import functools
import sys

import session.tools.web.fetching
from gateway.__main__ import main
from session.tools.web.fetching import Fetcher
from tests.session.tools.web_place import Web


def public(port: int) -> None:
    """Have the daemon that starts here take the local server for a public one."""
    web = Web(port=port)
    fetcher = functools.partial(Fetcher, resolve=web.resolve, connect=web.connect)
    session.tools.web.fetching.Fetcher = fetcher  # type: ignore[misc,assignment]


if __name__ == "__main__":
    public(int(sys.argv.pop(1)))
    sys.exit(main())
