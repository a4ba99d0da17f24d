"""Three nodes of RabbitMQ in one cluster, set up by the example of ``deploy/rabbitmq``."""

from __future__ import annotations

import re

from tests.support.broker import Broker
from tests.support.harness import ROOT

CONF = ROOT / "deploy" / "rabbitmq" / "rabbitmq.conf"


# Three nodes start at once, perhaps on a machine that has much else to do.
WITHIN_S = 240


class Cluster:
    """``with Cluster() as cluster`` starts it and at the end kills all that it started."""

    def __init__(self) -> None:
        # The nodes of the example lie on machines of their own; here one machine has all of them.
        said = re.sub(r"rabbit@(rabbit-\d)", r"\1@localhost", CONF.read_text())
        lines = tuple(line for line in said.splitlines() if line and not line.startswith("#"))
        names = re.findall(r"= (rabbit-\d)@localhost", said)
        first = Broker(config=lines, name=names[0])
        self.nodes = [first, *(Broker(config=lines, name=name, beside=first) for name in names[1:])]

    def __enter__(self) -> Cluster:
        try:
            for node in self.nodes:
                node.lay_out()
            cookie = self.nodes[0].base / "home" / ".erlang.cookie"
            cookie.write_text("of-the-tests")
            cookie.chmod(0o400)
            for node in self.nodes:
                node.launch(WITHIN_S)
            for node in self.nodes:
                node.wait(WITHIN_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for node in reversed(self.nodes):
            node.close()
