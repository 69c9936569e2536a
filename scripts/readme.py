"""Writes what is generated: the README's options and results, the tables and charts in benchmarks/results/.

`python scripts/readme.py`; a test compares them with what this would write.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import chart, overview, report  # noqa: E402 - found through the line above
from kforge_dynamo.settings import settings_table  # noqa: E402

README = ROOT / "README.md"
OPTIONS = ("<!-- options: begin -->", "<!-- options: end -->")
BENCHMARKS = (report.BEGIN, report.END)
RESULTS = ROOT / "benchmarks" / "results"
TABLES = RESULTS / "README.md"


def options() -> str:
    """The options and environment names as a table."""
    lines = ["| option | environment | values | default | meaning |", "| --- | --- | --- | --- | --- |"]
    for option, environment, domain, default, meaning in settings_table():
        shown = "" if option == "-" else f"`{option}`"
        lines.append(f"| {shown} | `{environment}` | {domain} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def written(text: str) -> str:
    """The README's `text` with both parts as they should be."""
    text = report.section(text, options(), OPTIONS)
    pictures = [f"![{name.removesuffix('.svg')}](benchmarks/results/{name})" for name in chart.written(report.result_files())]
    part = overview.markdown(report.result_files()) + "\n" + "\n".join(pictures) + "\n"
    return report.section(text, part, BENCHMARKS)


def files() -> dict[Path, str]:
    """Every generated file and what it should hold."""
    tables = report.section(TABLES.read_text(encoding="utf-8"), report.markdown(report.result_files()))
    charts = {RESULTS / name: text for name, text in chart.written(report.result_files()).items()}
    return {README: written(README.read_text(encoding="utf-8")), TABLES: tables, **charts}


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")
