"""The verbs of ``chat-gateway cron``, with their options."""

from __future__ import annotations

from gateway.cli.memory_verbs import Verbs


def add_cron(tree: Verbs) -> None:
    """Add the verbs."""
    tree.verb(
        "list",
        "gateway.cli.cron:list_",
        "list jobs, next run first",
        as_json=True,
    )
    add = tree.verb("add", "gateway.cli.cron:add", "add a job and print its id", as_json=True)
    when = add.add_mutually_exclusive_group(required=True)
    when.add_argument("--every", metavar="INTERVAL", help="such as 90s, 2h, 1h30m")
    when.add_argument("--cron", metavar="EXPR", help='five fields, such as "0 9 * * 1-5"')
    when.add_argument("--at", metavar="TIME", help="once, such as 2027-01-01T09:00")
    when.add_argument(
        "--heartbeat", metavar="INTERVAL", help="run the tasks of HEARTBEAT.md every 30m, 2h, …"
    )
    add.add_argument("--tz", metavar="ZONE", help="time zone of --cron or --at (default: the configured one)")
    add.add_argument("--message", metavar="TEXT", help="what to ask each time (not with --heartbeat)")
    add.add_argument("--to", metavar="KEY", help="chat that gets the answers, such as telegram:12345678")
    add.add_argument(
        "--session",
        choices=("job", "chat"),
        default="job",
        help="run in a session of its own or in the session of the chat (default: %(default)s)",
    )
    add.add_argument(
        "--agent", metavar="NAME", help="agent that runs it (default: the agent of the chat at that time)"
    )
    add.add_argument("--name", help="name to show in lists (default: the start of the message)")
    add.add_argument(
        "--missed",
        choices=("skip", "once", "all"),
        default="once",
        help="runs missed in the last 24 hours while the gateway was down (default: %(default)s)",
    )
    for name, words in (
        ("remove", "delete a job; its session is kept"),
        ("enable", "enable a job; runs missed while it was disabled are skipped"),
        ("disable", "disable a job"),
        ("run", "run a job now; its schedule stays the same"),
    ):
        verb = tree.verb(name, f"gateway.cli.cron:{name}", words, as_json=name == "run")
        verb.add_argument("id", metavar="ID", help="its id, from `cron list`")
