"""The gateway on a machine where the model's library cannot be imported, until a file appears."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from gateway.__main__ import main
from session.models import library

if __name__ == "__main__":
    load, repaired = library.load, Path(os.environ["REPAIRED"])

    def broken() -> Any:
        if repaired.exists():
            sys.modules.pop("litellm", None)
        else:
            # Python refuses to import what stands here as None.
            sys.modules["litellm"] = None  # type: ignore[assignment]
        return load()

    library.load = broken
    sys.exit(main())
