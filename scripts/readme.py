"""Writes the generated parts of the README: `python scripts/readme.py`. A test compares them with what this would write."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import report  # noqa: E402 - found through the line above
from kforge_dynamo.settings import settings_table  # noqa: E402

README = ROOT / "README.md"
OPTIONS = ("<!-- options: begin -->", "<!-- options: end -->")
BENCHMARKS = (report.BEGIN, report.END)


def options() -> str:
    """The options and environment names as a table."""
    lines = ["| option | environment | values | default | meaning |", "| --- | --- | --- | --- | --- |"]
    for option, environment, domain, default, meaning in settings_table():
        shown = "" if option == "-" else f"`{option}`"
        lines.append(f"| {shown} | `{environment}` | {domain} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def written(text: str) -> str:
    """`text` with both parts as they should be."""
    text = report.section(text, options(), OPTIONS)
    return report.section(text, report.markdown(report.result_files()), BENCHMARKS)


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
