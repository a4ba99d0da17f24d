"""Alert rules, scrape configuration and dashboard are what Prometheus and Grafana read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "deploy" / "prometheus"


def expressions() -> list[str]:
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    return [
        target["expr"].replace("$__rate_interval", "5m") for panel in panels for target in panel["targets"]
    ]


def test_promtool_finds_nothing_wrong(tmp_path: Path) -> None:
    """Where it is installed, it reads the rules, the configuration, and every expression of the dashboard."""
    lines = [f"  - record: panel_{n}\n    expr: {json.dumps(each)}" for n, each in enumerate(expressions())]
    rules = tmp_path / "dashboard.yml"
    rules.write_text("groups:\n- name: dashboard\n  rules:\n" + "\n".join(lines) + "\n")
    if promtool := shutil.which("promtool"):
        for words in (
            ("rules", FOLDER / "alerts.yml"),
            ("rules", rules),
            ("config", FOLDER / "prometheus.yml"),
        ):
            subprocess.run([promtool, "check", *words], check=True, capture_output=True)


def test_each_panel_asks_for_something_and_has_a_place_of_its_own() -> None:
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]

    assert all(panel["targets"] for panel in panels)
    assert len({panel["id"] for panel in panels}) == len(set(places)) == len(panels)
    assert all(expression.count("(") == expression.count(")") for expression in expressions())


def test_the_page_says_what_to_do_about_each_alert() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    alerts = re.findall(r"alert: (\w+)", (FOLDER / "alerts.yml").read_text())

    assert len(alerts) > 10
    assert [alert for alert in alerts if alert not in page] == []
