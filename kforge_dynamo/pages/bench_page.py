"""`kforge report --bench FILE`: rows of `benchmarks.run`: before and after, with intervals, errors, and why none was spliced."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from kforge_dynamo.errors import RecordError
from kforge_dynamo.pages.elements import facts, page, section, table, tag
from kforge_dynamo.pages.kernels import number

_MOST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class BenchRow:
    """A measured workload: times in us of the fastest baseline and of kforge, their ratio with its 95 % interval."""

    table: str
    made_with: str
    name: str
    baseline: str
    baseline_us: float | None
    kforge_us: float | None
    ratio: float | None
    low: float | None
    high: float | None
    error_ratio: float | None
    right: bool | None
    spliced: bool
    outcome: str

    @property
    def verdict(self) -> str:
        """ "wrong", "left to Inductor", "win", "loss", "even" or "not measured"."""
        if self.right is False:
            return "wrong"
        if self.ratio is None or self.low is None or self.high is None:
            return "not measured"
        if not self.spliced:
            return "left to Inductor"
        return "loss" if self.high < 1.0 else "win" if self.low > 1.0 else "even"


def read_bench(path: Path) -> tuple[list[BenchRow], int]:
    """The rows in a file of JSON lines, the last of each workload, and how many lines were none. Raises: RecordError."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise RecordError(f"{path} has more than {_MOST_BYTES >> 20} MiB; it was not written by benchmarks.run")
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror}); python -m benchmarks.run --out {path} makes it") from error
    rows: dict[tuple[str, str], BenchRow] = {}
    damaged = 0
    for line in lines:
        if not line.strip():
            continue
        row = _row(line)
        if row is None:
            damaged += 1
        else:
            rows[row.table, row.name] = row
    if not rows:
        raise RecordError(f"{path} holds no row; python -m benchmarks.run --out {path} adds some")
    return list(rows.values()), damaged


def bench_page(rows: Sequence[BenchRow], title: str) -> bytes:
    """The page of these rows, one table for each device, precision, size and mode."""
    tables = list(dict.fromkeys(row.table for row in rows))
    return page(title, *(part for name in tables for part in _table(name, [row for row in rows if row.table == name])))


def _row(line: str) -> BenchRow | None:
    try:
        data = json.loads(line)
        fields = data["row"]
        words = [str(fields[name]) for name in ("precision", "scale", "mode")]
        name = f"{fields['id']} {data.get('name', '')}".strip()
        if data.get("failure"):
            where = f"{data.get('device', 'unknown device')}: {', '.join(words)}"
            return BenchRow(where, "-", name, "-", None, None, None, None, None, None, None, False, f"failed: {data['failure']}")
        times, ratio = data["device_us"] or data["wall_us"], data["device_ratio"] or data["wall_ratio"] or {}
        baseline = str(ratio.get("against", "eager"))
        ours = data["kforge"] or {}
        error = data.get("error") or {}
        return BenchRow(
            table=f"{data['device']}: {', '.join(words)}",
            made_with=", ".join(f"{key} {value}" for key, value in data.get("versions", {}).items() if value),
            name=name,
            baseline=baseline,
            baseline_us=_number((times.get(baseline) or {}).get("median")),
            kforge_us=_number((times.get("kforge") or {}).get("median")),
            ratio=_number(ratio.get("value")),
            low=_number(ratio.get("low")),
            high=_number(ratio.get("high")),
            error_ratio=_number(error.get("ratio")),
            right=error.get("right") if isinstance(error.get("right"), bool) else None,
            spliced=_number((ours.get("stats") or {}).get("spliced")) not in (None, 0.0),
            outcome=_outcome(ours, data.get("failed") or {}),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _number(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None


def _outcome(ours: dict[str, Any], failed: dict[str, Any]) -> str:
    """Each region's scheme, or why it has no winner."""
    if not ours:
        return str(failed.get("kforge", "not measured"))
    words = [
        f"{item.get('scheme') or '?'} {item.get('title', '')}"
        if item.get("state") == "winner"
        else f"{item.get('state')}: {item.get('reason')}"
        for item in ours.get("regions") or []
    ]
    return "; ".join(words) or "no region"


def _table(name: str, rows: Sequence[BenchRow]) -> Iterator[Element]:
    ratios = [row.ratio for row in rows if row.ratio is not None and row.ratio > 0]
    won = [row.ratio for row in rows if row.spliced and row.ratio is not None and row.ratio > 0]
    verdicts = [row.verdict for row in rows]
    pairs = [
        ("geometric mean", number(statistics.geometric_mean(ratios) if ratios else None, unit=f"x over {len(ratios)} rows")),
        ("of the spliced", number(statistics.geometric_mean(won) if won else None, unit=f"x over {len(won)} rows")),
        ("wins, losses, wrong", f"{verdicts.count('win')}, {verdicts.count('loss')}, {verdicts.count('wrong')}"),
        ("made with", "; ".join(sorted({row.made_with for row in rows} - {"-"})) or "-"),
    ]
    heads = ("workload", "fastest other", "its us", "kforge us", "ratio", "95 %", "error ratio", "verdict", "winner or reason")
    lines = [
        (
            row.name,
            row.baseline,
            number(row.baseline_us, 1),
            number(row.kforge_us, 1),
            number(row.ratio),
            f"{number(row.low)} to {number(row.high)}",
            number(row.error_ratio),
            tag("span", row.verdict, class_={"win": "good", "loss": "bad", "wrong": "bad"}.get(row.verdict, "n")),
            row.outcome,
        )
        for row in sorted(rows, key=lambda row: -(row.ratio or 0.0))
    ]
    yield section(name, facts(pairs), table(heads, lines, numeric=heads[2:7]))
