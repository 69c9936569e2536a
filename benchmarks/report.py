"""Tables from the rows of `results/`: `python -m benchmarks.report [files ...] [--write README.md]`.

Of several rows for the same workload on the same device the last one counts. A workload that was left to Inductor is listed
with its ratio and not counted as a win; one that is slower than the fastest baseline is listed as a loss.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.totals import Row, ratio_of, spliced, totals
from kforge_dynamo.cli.measure import geomean

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
PRECISION_NAMES = {
    "fp32": "fp32 `highest`",
    "strict": "fp32 `strict`",
    "high": "fp32 `high`",
    "medium": "fp32 `medium`",
    "mixed": "fp32 tensors, `mixed`",
    "bf16": "bf16",
}

Key = tuple[str, str, str, str, str, str]


def read(paths: Sequence[Path]) -> dict[Key, list[Row]]:
    """Rows by (device, precision, scale, mode, source, options), each table in the order of the workloads' numbers."""
    latest: dict[tuple[Key, int], Row] = {}
    failures: dict[tuple[str, ...], str] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line) if line.strip() else None
            if row is None or "row" not in row:
                continue
            fields = row["row"]
            rest = (fields["precision"], fields["scale"], fields["mode"], fields["source"], fields["options"])
            if row["failure"]:
                failures[(*rest, str(fields["id"]))] = row["failure"]
                continue
            latest[((f"{row['device']}", *rest), fields["id"])] = row
    tables: dict[Key, list[Row]] = {}
    for (key, _), row in sorted(latest.items(), key=lambda item: item[0]):
        tables.setdefault(key, []).append(row)
    for key, rows in tables.items():
        have = {row["row"]["id"] for row in rows}
        for (*rest, number), reason in failures.items():
            if tuple(rest) == key[1:] and int(number) not in have:
                rows.append({"row": {"id": int(number)}, "failure": reason})
        rows.sort(key=lambda row: row["row"]["id"])
    return tables


def outcome(row: Row) -> str:
    """The winner's scheme, or why there is none."""
    if not row["kforge"]:
        return row["failed"].get("kforge", "not measured")
    states = row["kforge"]["regions"]
    if spliced(row):
        return ", ".join(sorted({r["scheme"] or "?" for r in states if r["state"] == "winner"}))
    reasons = [f"{r['state']}: {r['reason']}" for r in states] or ["no region"]
    return reasons[0].replace("|", "/")[:110]


def verdict(row: Row, ratio: dict[str, Any]) -> str:
    """A word for the last column."""
    if row["error"]["right"] is False:
        return "**WRONG**"
    if not spliced(row):
        return "left to Inductor"
    return "loss" if ratio["high"] < 1.0 else "win" if ratio["low"] > 1.0 else "even"


def cells(row: Row) -> list[str]:
    """One line of a table."""
    if row.get("failure"):
        return [str(row["row"]["id"]), "", "", "", "", "", "", f"failed: {row['failure'][:110]}", "failed"]
    times = row["device_us"] or row["wall_us"]
    ratio = row["device_ratio"] or row["wall_ratio"]
    best = times[ratio["against"]]["median"] if ratio else min(t["median"] for t in times.values())
    name = f"{row['name']}{'' if row['kind'] == 'plain' else ' (' + row['kind'] + ')'}"
    if not ratio:
        return [str(row["row"]["id"]), name, f"{best:.1f}", "", "", "", "", outcome(row), "not measured"]
    error = row["error"]["ratio"]
    wall = row["wall_ratio"]
    return [
        str(row["row"]["id"]),
        name,
        f"{best:.1f} ({ratio['against']})",
        f"{times['kforge']['median']:.1f}",
        f"{ratio['value']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]",
        f"{wall['value']:.2f}" if row["device_ratio"] else "",
        "exact" if error is None and row["error"]["right"] else "-" if error is None else f"{error:.2f}",
        outcome(row),
        verdict(row, ratio),
    ]


def mean_text(value: float | None) -> str:
    """A geometric mean, a dash for none."""
    return "-" if value is None else f"{value:.2f}x"


def numbers_text(numbers: Sequence[int]) -> str:
    """Workloads' numbers, or that there are none."""
    return ", ".join(str(number) for number in numbers) or "none"


def sentence(rows: list[Row]) -> str:
    """The sentence under a table."""
    found = totals(rows)
    won = [ratio["value"] for row in rows if (ratio := ratio_of(row)) and spliced(row)]
    return (
        f"Geometric mean {mean_text(found.means['37'])} over {found.rows} rows, {mean_text(found.means['33'])} without the "
        f"algebraic ones, {mean_text(geomean(won))} over the {len(won)} spliced. Losses: {numbers_text(found.losses)}. "
        f"Wrong: {numbers_text(found.wrong)}."
    )


def table(key: Key, rows: list[Row]) -> str:
    """One table with where and how it was measured."""
    device, precision, scale, mode, source, options = key
    first = next(row for row in rows if not row.get("failure"))
    versions = first["versions"]
    dates = sorted({row["date"][:10] for row in rows if not row.get("failure")})
    on_gpu = bool(first["device_us"])
    prepack = json.loads(options or "{}").get("prepack", "verify")
    where = device if on_gpu else f"{device}, {first['threads']} threads"
    clock = f"device time ({first['method']})" if on_gpu else "wall time"
    heads = [
        "id",
        "workload",
        "fastest baseline, us",
        "kforge, us",
        "ratio [95 %]",
        "wall ratio" if on_gpu else "",
        "error",
        "winner or reason",
        "",
    ]
    lines = [
        f"### {where}: {PRECISION_NAMES[precision]}, {scale} size, {mode} mode{'' if source == 'own' else ', ' + source}"
        + (f", options `{options}`" if options else ""),
        "",
        f"{clock}; prepack `{prepack}`; torch {versions['torch']}, triton {versions['triton']}, kforge {versions['kforge']}, "
        f"Python {versions['python']}; {' and '.join(dates)}; `{first['command']}`.",
        "",
        "| " + " | ".join(heads) + " |",
        "|" + " --- |" * len(heads),
        *("| " + " | ".join(cells(row)) + " |" for row in rows),
        "",
        sentence(rows),
        "",
    ]
    return "\n".join(lines)


def markdown(paths: Sequence[Path]) -> str:
    """All tables, or a sentence where there are no rows."""
    tables = read(paths)
    if not tables:
        return "No rows in `benchmarks/results/` yet: `python -m benchmarks.run` makes them.\n"
    return "\n".join(table(key, rows) for key, rows in sorted(tables.items()))


def result_files() -> list[Path]:
    """The rows that the repository keeps."""
    return sorted((HERE / "results").glob("*.jsonl"))


def section(text: str, part: str, marks: tuple[str, str] = (BEGIN, END)) -> str:
    """`text` with what stands between the marks replaced. Raises: ValueError where the marks are missing."""
    begin, end = marks
    if begin not in text or end not in text:
        raise ValueError(f"no {begin} ... {end} in the file: put the two marks where the part belongs")
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n\n{part.strip()}\n\n{end}{tail}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables, or write them into a file between its marks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--write", type=Path, metavar="FILE", help="a Markdown file with the two marks")
    args = parser.parse_args(argv)
    tables = markdown(args.files or result_files())
    if args.write is None:
        print(tables)
        return 0
    args.write.write_text(section(args.write.read_text(encoding="utf-8"), tables), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
