"""What of the package is loaded by whom: start-up costs what is imported."""

from __future__ import annotations

import subprocess
import sys

LOADED = """
import sys
import gateway.config.settings
print(sorted(name for name in sys.modules if name.startswith("session.")))
import session.turn.turn
print(sorted({"litellm", "openai", "telegram", "discord"} & set(sys.modules)))
"""


def test_reading_the_configuration_loads_presets_and_bindings_alone() -> None:
    """Neither a store nor a compactor; and whoever runs turns loads no client library by that."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)

    presets = ["session.compaction", "session.compaction.presets", "session.models", "session.models.tokens"]
    agents = ["session.context", "session.context.agents", "session.transcript", "session.transcript.key"]
    assert done.stdout.splitlines() == [str(sorted(presets + agents)), "[]"]
