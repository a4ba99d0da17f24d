"""Formats a run: a line for each batch, a table of guarantees, each violation, the replay command; pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.chaos.batch import Result
from tests.chaos.records import Account, Guarantee, rows
from tests.chaos.run import Outcome, Plan, replay


def batch_line(result: Result) -> str:
    """Return the line for one batch."""
    account = result.account
    found = f"{len(account.broken)} VIOLATIONS" if account.broken else "nothing broken"
    return (
        f"seed {result.seed}: {result.kills} kills, {account.messages} messages, "
        f"{account.calls} model calls, {len(account.repeats)} repeats, {result.took_s:.0f} s: {found}"
    )


def table(plan: Plan, outcome: Outcome) -> str:
    """Return the report of the whole run."""
    account, deaths, faults = _summed(outcome)
    lines: list[str] = ["", f"{'':4}{'guarantee':<88}{'checked':>9}{'broken':>8}"]
    lines += [
        f"{each.name:<4}{each.promise:<88}{each.checked:>9}{len(each.broken):>8}"
        for each in account.guarantees
    ]
    kills = sum(result.kills for result in outcome.results)
    lines += ["", f"{kills} kills of daemons and {deaths['broker']} of the broker: {_counted(deaths)}"]
    lines += [f"other faults: {_counted(faults) or 'none'}"]
    lines += [f"model calls: {account.calls} ({account.least_calls} without faults and stops)"]
    if account.pieces:
        lines += [f"chunks sent to Telegram: {account.pieces}"]
    for what, causes in _repeats(account).items():
        lines.append(f"{what} repeated: {sum(causes.values())} ({_counted(causes) or 'none'})")
    if (failed := outcome.failed) is not None:
        lines += ["", *failed.account.broken, "", f"replay: {replay(plan, failed.seed, failed.kills)}"]
    if outcome.folder is not None:
        lines += [f"workspaces, logs and records are kept in {outcome.folder}"]
    return "\n".join(lines)


def document(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """Return the report of the whole run as one JSON document."""
    account, deaths, faults = _summed(outcome)
    failed = outcome.failed
    return {
        "seed": plan.seed,
        "broker": "rabbitmq" if plan.rabbitmq or plan.url else "embedded",
        "daemons": plan.daemons,
        "platform": plan.platform,
        "workers": plan.workers,
        "kills": sum(result.kills for result in outcome.results),
        "took_s": round(sum(result.took_s for result in outcome.results), 1),
        "deaths": dict(deaths),
        "faults": dict(faults),
        "messages": account.messages,
        "stopped": account.stopped,
        "platform_messages": account.pieces,
        "model_calls": account.calls,
        "model_calls_without_faults": account.least_calls,
        "guarantees": rows(account.guarantees),
        "repeats": rows(account.repeats),
        "replay": replay(plan, failed.seed, failed.kills) if failed is not None else None,
        "folder": str(outcome.folder) if outcome.folder is not None else None,
    }


def _summed(outcome: Outcome) -> tuple[Account, Counter[str], Counter[str]]:
    first = outcome.results[0].account
    whole = Account([Guarantee(each.name, each.promise) for each in first.guarantees])
    deaths: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for result in outcome.results:
        whole.add(result.account)
        deaths += result.deaths
        faults += result.faults
    return whole, deaths, faults


def _repeats(account: Account) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {"model calls": Counter(), "replies": Counter()}
    if account.pieces:
        found["chunks"] = Counter()
    names = {"reply": "replies", "piece": "chunks"}
    for repeat in account.repeats:
        found[names.get(repeat.what, "model calls")][repeat.cause or "UNEXPLAINED"] += 1
    return found


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())
