"""What the transcripts of a whole run say about the guarantees G1 to G3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.place import lines_of


@dataclass
class Verdict:
    """What a check over a whole run found, by guarantee."""

    messages: int = 0
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    torn_chains: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not (self.lost or self.twice or self.reordered or self.torn_chains)


def check(workspace: Path, sent: Mapping[str, Sequence[str]]) -> Verdict:
    """Check G1–G3 on the transcripts: ``sent`` has the ids of each stem in the order of their puts."""
    verdict = Verdict(messages=sum(len(ids) for ids in sent.values()))
    for stem, ids in sent.items():
        lines = lines_of(workspace, stem)
        users = [line["message_id"] for line in lines if line["role"] == "user"]
        finals = [line["message_id"] for line in lines if line.get("final")]
        verdict.lost += [one for one in ids if one not in finals]
        verdict.twice += [one for one in set(users) if users.count(one) > 1 or finals.count(one) > 1]
        if [one for one in finals if one in set(ids)] != [one for one in ids if one in set(finals)]:
            verdict.reordered.append(stem)
        calls = [call["id"] for line in lines for call in line.get("tool_calls") or []]
        results = [line["tool_call_id"] for line in lines if line["role"] == "tool"]
        if sorted(calls) != sorted(results):
            verdict.torn_chains.append(stem)
    return verdict
