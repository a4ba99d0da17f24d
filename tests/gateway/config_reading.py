"""What tests of the configuration share: reading a text, and the problems it has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.config.load import load
from gateway.config.settings import Settings
from gateway.errors import ConfigError

EVERY_DEFAULT = """
timezone = "UTC"
bindings = []
[broker]
url = "embedded"
partitions = 16
queue_type = "auto"
heartbeat_s = 10
ca_file = ""
cert_file = ""
key_file = ""
name = "chat"
[model]
name = "echo"
echo_delay_s = 0.0
api_base = ""
api_key = ""
context_window = 0
max_output_tokens = 4096
takes = []
cache = true
timeout_s = 120
stream = "auto"
max_tool_rounds = 25
fallbacks = []
small = ""
embedding = ""
[limits]
concurrent_turns = 64
turn_timeout_s = 600
pending_per_chat = 50
flood_per_chat = 5000
attempts = 3
model_tries = 5
outage_hours = 24
drain_s = 25
turns_per_person_per_hour = 0
cost_per_day_usd = 0.0
background_calls_per_hour = 60
background_calls_per_day = 500
queue_mode = "followup"
collect_s = 0.5
workers = 1
worker_timeout_s = 30
cost_per_chat_per_day_usd = 0.0
cost_per_person_per_day_usd = 0.0
cost_per_job_per_day_usd = 0.0
tokens_per_day = 0
[session]
idle_hours = 0
recent_sessions = 3
recent_days = 14
retention_days = 0
cache_mb = 256
[history]
mode = "all"
changing_parts = "end"
last = 50
budget_tokens = 50000
candidates = 30
exchanges_always = 3
max_messages = 20
relevance = 0.45
full_tool_results = 2
[compaction]
preset = "overlay"
[memory]
scope = "chat"
window = 100
max_kb = 32
profile_max_kb = 8
versions = 50
version_days = 90
[people]
[tools]
direct = [
  "read", "write", "edit", "ls", "grep", "profile", "skill_read", "memory_search", "schedule", "send_file",
  "session_archive_read", "spawn"
]
groups = ["skill_read", "memory_search", "session_archive_read"]
[tools.policy]
approval_timeout_s = 600
[tools.policy.people]
[tools.policy.chats]
[tools.policy.channels]
[tools.web_fetch]
enabled = false
max_kb = 512
timeout_s = 20
[tools.shell]
enabled = false
network = false
timeout_s = 60
[mcp]
[agents]
[metrics]
port = 0
[telemetry]
endpoint = ""
sample = 1.0
[facts]
enabled = true
idle_s = 300
max_turns = 10
confidence = 0.7
[channels.telegram]
enabled = false
token = ""
base_url = "https://api.telegram.org/bot"
base_file_url = "https://api.telegram.org/file/bot"
poll_timeout_s = 30
request_timeout_s = 30
allow_from = []
direct = "pairing"
groups = "mention"
group_allow = []
stream = true
queue_mode = ""
[channels.discord]
enabled = false
token = ""
request_timeout_s = 30
allow_from = []
direct = "pairing"
groups = "mention"
group_allow = []
stream = true
queue_mode = ""
api_base_url = "https://discord.com/api/v10"
gateway_url = ""
cdn_base_url = ""
heartbeat_timeout_s = 60
sweep_s = 60
[channels.web]
enabled = true
[media]
max_mb = 20
timeout_s = 60
[http]
host = "127.0.0.1"
port = 8006
token = ""
allowed_hosts = []
requests_per_minute = 0
[state]
local_dir = ""
[log]
format = "auto"
level = "info"
"""


def read(folder: Path, text: str = "", environ: Mapping[str, str] | None = None) -> Settings:
    file = folder / "chat-gateway.toml"
    file.write_text(text, encoding="utf-8")
    return load(file, None, {"HOME": str(folder), **(environ or {})})


def problems(folder: Path, text: str = "", environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text, environ)
    assert caught.value.exit_code == 78
    return [problem.removeprefix(f"{folder}/") for problem in caught.value.problems]
