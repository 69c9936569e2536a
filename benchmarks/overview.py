"""The README's part: one line a table of rows, one line a workload with all settings beside each other, and the bars."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import PRECISION_NAMES, Key, mean_text, numbers_text, read
from benchmarks.totals import LEVELS, SETS, Row, Totals, is_loss, is_wrong, ratio_of, spliced, totals

MARKS = "wrong results are **bold**, *losses* slanted, and what was left to Inductor stands in (brackets)"


def setting(key: Key) -> str:
    """A table's precision, size, mode and prepack setting in words."""
    _, precision, scale, mode, source, options = key
    words = [PRECISION_NAMES[precision], {"full": "", "cpu": "CPU size", "small": "first-release size"}.get(scale, scale)]
    words += [f"{mode} mode" if mode != "eval" else "", "" if source == "own" else source]
    more = json.loads(options or "{}")
    words += [f"`prepack={more.pop('prepack')}`" if "prepack" in more else ""]
    words += [f"options `{json.dumps(more, sort_keys=True)}`" if more else ""]
    return ", ".join(word for word in words if word)


def line_of_totals(key: Key, rows: list[Row]) -> str:
    """One table in a line."""
    found: Totals = totals(rows)
    timed = [row for row in rows if not row.get("failure")]
    first = timed[0]
    dates = sorted({row["date"][:10] for row in timed})
    where = key[0] if first["device_us"] else f"{key[0]}, {first['threads']} threads"
    made = f"torch {first['versions']['torch']}, Triton {first['versions']['triton']}; {' and '.join(dates)}"
    baselines = sorted({name for row in timed for name in row["compile_s"] if name not in ("kforge", "autocast")})
    cells = [
        where,
        setting(key),
        str(found.rows),
        *(mean_text(found.means[name]) for name in SETS),
        mean_text(found.wall) if found.wall else "(wall time)",
        " / ".join(str(count) for count in found.fast),
        str(len(found.spliced)),
        numbers_text(found.losses),
        numbers_text(found.wrong),
        "-" if found.worst_error is None else f"{found.worst_error:.2f}",
        f"{', '.join(baselines)}; {made}",
    ]
    return "| " + " | ".join(cells) + " |"


def cell(row: Row | None) -> str:
    """A workload in one setting: ratio, and kforge's error over eager's."""
    if row is None:
        return ""
    ratio = ratio_of(row)
    if ratio is None:
        return "failed"
    error = row["error"]["ratio"]
    unknown = "exact" if row["error"]["right"] else "-"
    text = f"{ratio['value']:.2f} / {unknown if error is None else f'{error:.2f}'}"
    if is_wrong(row):
        return f"**{text}**"
    return f"*{text}*" if is_loss(row) else text if spliced(row) else f"({text})"


def by_workload(tables: dict[Key, list[Row]]) -> list[str]:
    """Lines of a table for each device: workloads down, settings across."""
    lines: list[str] = []
    for device in sorted({key[0] for key in tables}):
        keys = sorted(key for key in tables if key[0] == device)
        rows = {key: {row["row"]["id"]: row for row in tables[key]} for key in keys}
        numbers = sorted({number for found in rows.values() for number in found})
        heads = ["id", "workload", *(setting(key) for key in keys)]
        lines += ["", f"**{device}**", "", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
        for number in numbers:
            named = next((found[number] for found in rows.values() if number in found and not found[number].get("failure")), None)
            name = "" if named is None else f"{named['name']}{'' if named['kind'] == 'plain' else ' (' + named['kind'] + ')'}"
            lines.append("| " + " | ".join([str(number), name, *(cell(rows[key].get(number)) for key in keys)]) + " |")
    return lines


def markdown(paths: Sequence[Path]) -> str:
    """The part of the README, or a sentence where there are no rows."""
    tables = {key: rows for key, rows in read(paths).items() if any(not row.get("failure") for row in rows)}
    if not tables:
        return "No rows in `benchmarks/results/` yet: `python -m benchmarks.run` makes them.\n"
    fast = " / ".join(f"{level:g}" for level in LEVELS)
    means = ["all", *list(SETS)[1:]]
    heads = [
        "device",
        "setting",
        "rows",
        *means,
        "wall",
        f"fast_p, p = {fast}",
        "spliced",
        "losses",
        "wrong",
        "worst error",
        "against",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    lines += [line_of_totals(key, rows) for key, rows in sorted(tables.items())]
    lines += [
        "",
        "Geometric means of the ratios over all rows of the 37 workloads; over 35, without the two whose output is all zeros;",
        "over 33, without those in which algebra moves a reduction into the weight; over 29, without both and two of which an",
        "operation does nothing. A device's ratios are of device time, *wall* is the mean of those of the call. All of each row:",
        "[benchmarks/results](benchmarks/results/README.md).",
    ]
    lines += ["", f"By workload, *ratio / error*; {MARKS}:", *by_workload(tables)]
    return "\n".join(lines) + "\n"
