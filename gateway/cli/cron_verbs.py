"""The verbs of ``chat-gateway cron``, with their options."""

from __future__ import annotations

from gateway.cli.memory_verbs import Verbs


def add_cron(tree: Verbs) -> None:
    """Add the verbs."""
    tree.verb(
        "list",
        "gateway.cli.cron:list_",
        "list jobs, those that run next first, and what cannot run",
        as_json=True,
    )
    add = tree.verb("add", "gateway.cli.cron:add", "add a job and print its id", as_json=True)
    when = add.add_mutually_exclusive_group(required=True)
    when.add_argument("--every", metavar="INTERVAL", help="such as 90s, 2h, 1h30m")
    when.add_argument("--cron", metavar="EXPR", help='five fields, such as "0 9 * * 1-5"')
    when.add_argument("--at", metavar="TIME", help="once, such as 2027-01-01T09:00")
    when.add_argument("--heartbeat", metavar="INTERVAL", help="asks what HEARTBEAT.md holds, such as 30m")
    add.add_argument("--tz", metavar="ZONE", help="zone of --cron or --at (default: the configured one)")
    add.add_argument("--message", metavar="TEXT", help="what is asked each time (a heartbeat needs none)")
    add.add_argument("--to", metavar="KEY", help="chat that gets the answers, such as telegram:12345678")
    add.add_argument(
        "--session",
        choices=("job", "chat"),
        default="job",
        help="whose conversation it runs in: its own, or that of the chat (default: %(default)s)",
    )
    add.add_argument(
        "--agent", metavar="NAME", help="whose job it is (default: of whichever agent the chat has then)"
    )
    add.add_argument("--name", help="how lists show it (default: the beginning of the message)")
    add.add_argument(
        "--missed",
        choices=("skip", "once", "all"),
        default="once",
        help="runs that passed while nobody looked, within 24 hours (default: %(default)s)",
    )
    for name, words in (
        ("remove", "remove a job for good; its conversation stays"),
        ("enable", "switch a job on; what passed while it was off is not made up"),
        ("disable", "switch a job off"),
        ("run", "run a job now, beside its schedule"),
    ):
        verb = tree.verb(name, f"gateway.cli.cron:{name}", words, as_json=name == "run")
        verb.add_argument("id", metavar="ID", help="as `cron list` shows it")
