"""A workspace as somebody has it who uses the gateway every day."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

from session.models.model import Usage
from session.models.usage_lines import SpendingRow
from session.transcript.line import make_line, stamp
from tests.browser.seeds import NOW, UTC, Line, exchange, write_session

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
    (
        "discord:99120517",
        "support",
        "The invoice shows the wrong address",
        "I changed it; a new one is on its way.",
    ),
    ("cron:daily-brief", "Morning brief", "What is new today?", "Two meetings, light rain, no alerts."),
    (
        "telegram:77120033",
        "Grandma's recipes",
        "How long do the dumplings boil?",
        "Twelve minutes, lid ajar.",
    ),
]


def fill(workspace: Path) -> None:
    """Write everything of the demo."""
    for number, (key, name, question, answer) in enumerate(PEOPLE):
        at = NOW - timedelta(hours=1 + 7 * number)
        write_session(workspace, key, list(exchange(number, question, answer, at)), name=name, begun=at)
    _operations(workspace)
    _memory(workspace)
    _jobs(workspace)
    _usage(workspace)


def _operations(workspace: Path) -> None:
    key, begun = "web:operations", NOW - timedelta(minutes=50)
    last_week = NOW - timedelta(days=6)
    before = list(
        exchange(
            1, "Set up the backups of both hosts", "Done: nightly at 02:30, kept for 30 days.", last_week
        )
    )
    write_session(
        workspace,
        key,
        before,
        name="Setting up backups",
        begun=last_week,
        ended=last_week + timedelta(hours=1),
    )
    call = [
        {
            "id": "call_1",
            "type": "function",
            "function": {
                "name": "shell",
                "arguments": json.dumps({"command": "df -h --output=target,avail,pcent"}),
            },
        }
    ]
    lines: list[Line] = [
        *exchange(2, "Good morning", "Good morning! What shall we look at?", begun),
        make_line(
            "user",
            "What changed on the servers since Friday?",
            stamp(begun + timedelta(minutes=3), UTC),
            message_id="web:m3",
        ),
        make_line(
            "assistant",
            "I look at the disks first.",
            stamp(begun + timedelta(minutes=3, seconds=4), UTC),
            tool_calls=call,
            message_id="web:m3",
        ),
        make_line(
            "tool",
            "Mounted on   Avail Use%\n/            210G  61%\n/srv          38G  83%",
            stamp(begun + timedelta(minutes=3, seconds=5), UTC),
            tool_call_id="call_1",
            name="shell",
            message_id="web:m3",
        ),
        make_line(
            "assistant",
            ANSWER,
            stamp(begun + timedelta(minutes=3, seconds=12), UTC),
            message_id="web:m3",
            final=True,
            usage={"prompt": 2480, "completion": 212, "cost_usd": 0.0093},
        ),
        make_line(
            "user",
            "Yes, on Monday at nine.",
            stamp(begun + timedelta(minutes=9), UTC),
            message_id="web:m4",
            attachments=[
                {
                    "kind": "document",
                    "name": "hosts.txt",
                    "mime": "text/plain",
                    "size": 1834,
                    "ref": "media/ab/hosts.txt",
                }
            ],
        ),
        make_line(
            "assistant",
            "Noted: Monday, 09:00, *renew the certificate of mail.example.org*.",
            stamp(begun + timedelta(minutes=9, seconds=5), UTC),
            message_id="web:m4",
            final=True,
            usage={"prompt": 2710, "completion": 31, "cost_usd": 0.0058},
        ),
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
    facts = [
        ("01KJMMA2G01YBHZZBBY3RWPAP1", "Backups of both hosts run at 02:30", "project", 0.97),
        ("01KJMMA2G01YBHZZBBY3RWPAP2", "Ada prefers short answers", "preference", 0.91),
    ]
    rows = [
        {
            "id": id_,
            "text": text,
            "category": category,
            "confidence": sure,
            "key": "web:operations",
            "message_id": "web:m1",
            "created_at": stamp(NOW - timedelta(days=6), UTC),
            "replaced_by": None,
        }
        for id_, text, category, sure in facts
    ]
    (folder / "facts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _jobs(workspace: Path) -> None:
    ms = int(NOW.timestamp() * 1000)
    past = [
        {"runAtMs": ms - day * 86_400_000, "status": "ok", "durationMs": 4200 + day * 310, "error": None}
        for day in (3, 2, 1)
    ]
    job = {
        "id": "daily-brief",
        "name": "Morning brief",
        "enabled": True,
        "schedule": {"kind": "cron", "atMs": None, "everyMs": None, "expr": "0 7 * * *", "tz": "Europe/Oslo"},
        "payload": {
            "kind": "agent_turn",
            "message": "What is new today? Mail, calendar, weather.",
            "deliver": True,
            "channel": "telegram",
            "to": "48201133",
        },
        "state": {
            "nextRunAtMs": None,
            "lastRunAtMs": ms - 86_400_000,
            "lastStatus": "ok",
            "lastError": None,
            "runHistory": past,
        },
        "createdAtMs": ms - 9 * 86_400_000,
        "updatedAtMs": ms - 86_400_000,
        "deleteAfterRun": False,
    }
    (workspace / "cron").mkdir(parents=True, exist_ok=True)
    (workspace / "cron" / "jobs.json").write_text(json.dumps({"version": 1, "jobs": [job]}))


def _usage(workspace: Path) -> None:
    """Write four weeks of turns, more on weekdays."""
    folder = workspace / "state" / "usage"
    folder.mkdir(parents=True, exist_ok=True)
    models = ("anthropic/claude-sonnet", "anthropic/claude-haiku")
    for ago in range(28):
        day = (NOW - timedelta(days=ago)).replace(hour=0, minute=0, second=1)
        count = 0 if ago == 0 else (3 if day.weekday() > 4 else 9) + (ago * 7) % 5
        rows = [
            SpendingRow(
                day + timedelta(minutes=11 * turn),
                PEOPLE[(turn + ago) % len(PEOPLE)][0],
                "ada" if turn % 3 else "",
                Usage(2_400 + 137 * ((turn + ago) % 11), 180 + 23 * (turn % 7), 0.009 + 0.001 * (turn % 5)),
                model=models[turn % 4 == 0],
            )
            for turn in range(count)
        ]
        text = b"".join(row.to_bytes() for row in rows)
        (folder / f"{day:%Y-%m-%d}.jsonl").write_bytes(b'{"v":1}\n' + text)
