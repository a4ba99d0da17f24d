"""A workspace as somebody has it who uses the gateway every day."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from session.models.model import Usage
from session.transcript.line import make_line, stamp
from tests.browser.seeds import NOW, UTC, Line, exchange, write_session
from tests.support.usage_rows import spent, usage_row

ANSWER = """\
Three things changed since Friday:

1. **Backups** run at 02:30 and take 4 minutes.
2. The certificate of `mail.example.org` ends in *12 days*.
3. Disk use is at 61 %.

| host | free | backup |
|---|---:|:---:|
| alpha | 210 GB | ok |
| beta | 38 GB | ok |

```sh
certbot renew --cert-name mail.example.org
systemctl reload postfix
```

Shall I add a [reminder](https://example.org/reminders) for Monday?
"""
PEOPLE = [
    (
        "telegram:48201133",
        "Weekend in Bergen",
        "Is the ferry at nine booked?",
        "Yes, for two, with bicycles.",
    ),
    ("discord:99120444", "release-notes", "Draft the notes for 2.4", "Here is a draft with four points."),
    ("telegram:50033871", "Mia · homework", "What is a prime number?", "A number with exactly two divisors."),
    ("cli:direct", "Terminal", "explain this stack trace", "The pool was closed before the last query."),
    ("discord:99120517", "support", "The invoice shows the wrong address", "I changed it; it is on its way."),
    ("cron:daily-brief", "Morning brief", "What is new today?", "Two meetings, light rain, no alerts."),
    (
        "telegram:77120033",
        "Grandma's recipes",
        "How long do the dumplings boil?",
        "Twelve minutes, lid ajar.",
    ),
]


async def fill(workspace: Path) -> None:
    """Write everything of the demo."""
    for number, (key, name, question, answer) in enumerate(PEOPLE):
        at = NOW - timedelta(hours=1 + 7 * number)
        write_session(workspace, key, list(exchange(number, question, answer, at)), name=name, begun=at)
    _operations(workspace)
    _memory(workspace)
    _jobs(workspace)
    await _usage(workspace)


def _operations(workspace: Path) -> None:
    key, begun = "web:operations", NOW - timedelta(minutes=50)
    last_week = NOW - timedelta(days=6)
    asked, answered = "Set up the backups of both hosts", "Done: nightly at 02:30, kept for 30 days."
    before = list(exchange(1, asked, answered, last_week))
    ended = last_week + timedelta(hours=1)
    write_session(workspace, key, before, name="Setting up backups", begun=last_week, ended=ended)

    def line(role: str, text: str, seconds: int, number: int = 3, **more: Any) -> Line:
        at = stamp(begun + timedelta(minutes=3, seconds=seconds), UTC)
        return make_line(role, text, at, message_id=f"web:m{number}", **more)

    arguments = json.dumps({"command": "df -h --output=target,avail,pcent"})
    call = {"id": "call_1", "type": "function", "function": {"name": "shell", "arguments": arguments}}
    disks = "Mounted on   Avail Use%\n/            210G  61%\n/srv          38G  83%"
    hosts = {"kind": "document", "name": "hosts.txt", "mime": "text/plain", "size": 1834}
    noted = "Noted: Monday, 09:00, *renew the certificate of mail.example.org*."
    spent = [
        {"prompt": 2480, "completion": 212, "cost_usd": 0.0093},
        {"prompt": 2710, "completion": 31, "cost_usd": 0.0058},
    ]
    lines: list[Line] = [
        *exchange(2, "Good morning", "Good morning! What shall we look at?", begun),
        line("user", "What changed on the servers since Friday?", 0),
        line("assistant", "I look at the disks first.", 4, tool_calls=[call]),
        line("tool", disks, 5, tool_call_id="call_1", name="shell"),
        line("assistant", ANSWER, 12, final=True, usage=spent[0]),
        line("user", "Yes, on Monday at nine.", 360, 4, attachments=[hosts | {"ref": "media/ab/hosts.txt"}]),
        line("assistant", noted, 365, 4, final=True, usage=spent[1]),
    ]
    write_session(workspace, key, lines, name="Operations", begun=begun)


def _memory(workspace: Path) -> None:
    folder = workspace / "memory" / "chats" / "web_operations"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "MEMORY.md").write_text(
        "# Servers\n\n- alpha and beta run Debian 12\n- backups: nightly at 02:30, kept for 30 days\n"
    )
    (folder / "USER.md").write_text("Ada runs two small servers for her family. She likes short answers.\n")
    (folder / "HISTORY.md").write_text("[2026-11-17 08:30] Backups of alpha and beta were set up.\n")
    told = {"key": "web:operations", "message_id": "web:m1", "replaced_by": None}
    told["created_at"] = stamp(NOW - timedelta(days=6), UTC)
    backups = {"text": "Backups of both hosts run at 02:30", "category": "project", "confidence": 0.97}
    style = {"text": "Ada prefers short answers", "category": "preference", "confidence": 0.91}
    rows = [
        {"id": f"01KJMMA2G01YBHZZBBY3RWPAP{n}", **fact, **told} for n, fact in enumerate((backups, style), 1)
    ]
    (folder / "facts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _jobs(workspace: Path) -> None:
    ms, day_ms = int(NOW.timestamp() * 1000), 86_400_000
    past = [
        {"runAtMs": ms - day * day_ms, "status": "ok", "durationMs": 4200 + day * 310} for day in (3, 2, 1)
    ]
    message = {"kind": "agent_turn", "message": "What is new today? Mail, calendar, weather."}
    job = {
        "id": "daily-brief",
        "name": "Morning brief",
        "enabled": True,
        "schedule": {"kind": "cron", "expr": "0 7 * * *", "tz": "Europe/Oslo"},
        "payload": message | {"deliver": True, "channel": "telegram", "to": "48201133"},
        "state": {"lastRunAtMs": ms - day_ms, "lastStatus": "ok", "runHistory": past},
        "createdAtMs": ms - 9 * day_ms,
        "updatedAtMs": ms - day_ms,
    }
    (workspace / "cron").mkdir(parents=True, exist_ok=True)
    (workspace / "cron" / "jobs.json").write_text(json.dumps({"version": 1, "jobs": [job]}))


async def _usage(workspace: Path) -> None:
    """Write four weeks of turns, more on weekdays."""
    models = ("anthropic/claude-sonnet", "anthropic/claude-haiku")
    rows = []
    for ago in range(28):
        day = (NOW - timedelta(days=ago)).replace(hour=0, minute=0, second=1)
        count = 0 if ago == 0 else (3 if day.weekday() > 4 else 9) + (ago * 7) % 5
        rows += [
            usage_row(
                day + timedelta(minutes=11 * turn),
                PEOPLE[(turn + ago) % len(PEOPLE)][0],
                "ada" if turn % 3 else "",
                Usage(2_400 + 137 * ((turn + ago) % 11), 180 + 23 * (turn % 7), 0.009 + 0.001 * (turn % 5)),
                model=models[turn % 4 == 0],
            )
            for turn in range(count)
        ]
    await spent(workspace, rows)
