"""The tables say what the rows say, losses included."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from benchmarks import chart, overview, report


def row(number, value, *, spliced=1, right=True, precision="fp32", failure=None, kind="plain", options=""):
    fields = {
        "id": number,
        "scale": "cpu",
        "precision": precision,
        "mode": "eval",
        "source": "own",
        "options": options,
        "kind": "cpu",
    }
    if failure:
        return {"row": fields, "failure": failure, "command": "python -m benchmarks.run", "took_s": 1.0}
    ratio = {"against": "default", "value": value, "low": value - 0.02, "high": value + 0.02}
    region = {"title": "relu(linear)", "state": "winner" if spliced else "no_winner", "scheme": "ieee" if spliced else None}
    region |= {"reason": "" if spliced else "the fastest right kernel was slower", "speedup": None, "error_ratio": None}
    return {
        "row": fields,
        "failure": None,
        "name": f"Workload_{number}",
        "kind": kind,
        "device": "a device",
        "threads": 2,
        "date": "2026-12-01 10:00",
        "versions": {"torch": "2.13.0", "triton": "3.7.1", "kforge": "0.1.0", "python": "3.11", "cuda": None},
        "command": "python -m benchmarks.run",
        "wall_us": {"eager": {"median": 120.0}, "default": {"median": 100.0}, "kforge": {"median": 100.0 / value}},
        "wall_ratio": ratio,
        "device_us": None,
        "device_ratio": None,
        "method": None,
        "error": {"ratio": 0.9, "right": right},
        "failed": {},
        "compile_s": {"eager": 0.1, "default": 1.0, "kforge": 2.0},
        "kforge": {"stats": {"spliced": spliced}, "regions": [region]},
    }


def test_overview_shows_settings_beside_each_other_and_counts_what_ran(tmp_path):
    rows = [row(9, 2.0), row(12, 0.5), row(14, 8.0), row(18, 1.7, spliced=0), row(30, 3.0, right=False)]
    rows += [row(9, 3.0, options='{"prepack": "trust"}'), row(22, 1.0, failure="no result within 300 s")]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    text = overview.markdown([path])
    assert "| 9 | Workload_9 | 2.00 / 0.90 | 3.00 / 0.90 |" in text
    assert "| 12 | Workload_12 | *0.50 / 0.90* |  |" in text and "| 30 | Workload_30 | **3.00 / 0.90** |  |" in text
    assert "| (1.70 / 0.90) |" in text and "| failed |" in text
    line = next(line for line in text.splitlines() if line.startswith("| a device, 2 threads | fp32 `highest`, CPU size | 5 |"))
    assert "| 2.10x | 2.13x | 1.44x | 1.22x |" in line  # of 2, 0.5, 8, 1.7, 3
    assert "| 2 / 2 / 1 |" in line and "| 4 | 12 | 30 |" in line  # 9 and 14 are fast; 18 did not run a winner, 30 is wrong


def test_chart_has_a_bar_for_each_ratio(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps(one) + "\n" for one in (row(9, 2.0), row(12, 0.5, spliced=0), row(12, 4.0, precision="bf16")))
    )
    (name, text), *others = chart.written([path]).items()
    assert name == "a-device.svg" and not others
    drawing = ElementTree.fromstring(text)
    bars = [one for one in drawing.iter("{http://www.w3.org/2000/svg}rect") if len(one)]
    assert sorted(bar[0].text.split("x")[0] for bar in bars) == ["0.50", "2.00", "4.00"]
    assert [bar.get("opacity") for bar in bars].count("0.35") == 1
    wide = {bar[0].text.split("x")[0]: float(bar.get("width")) for bar in bars}
    assert wide["4.00"] == pytest.approx(2 * wide["2.00"], abs=0.2) and wide["0.50"] == pytest.approx(wide["2.00"], abs=0.2)


def tables(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return report.markdown([path])


def line_of(text, number):
    return next(line for line in text.splitlines() if line.startswith(f"| {number} |"))


def test_report_without_rows_says_how_to_make_them(tmp_path):
    assert "python -m benchmarks.run" in tables(tmp_path)


def test_report_names_wins_losses_and_wrong_results(tmp_path):
    text = tables(tmp_path, row(9, 2.0), row(12, 0.5), row(14, 1.5, right=False), row(18, 1.01))
    assert line_of(text, 9).endswith("| win |")
    assert line_of(text, 12).endswith("| loss |")
    assert "**WRONG**" in line_of(text, 14)
    assert line_of(text, 18).endswith("| even |")
    assert "Losses: 12." in text and "Wrong: 14." in text


def test_report_does_not_count_what_was_left_to_inductor(tmp_path):
    text = tables(tmp_path, row(9, 4.0), row(12, 1.5, spliced=0))
    assert line_of(text, 12).endswith("| left to Inductor |")
    assert "no_winner: the fastest right kernel was slower" in line_of(text, 12)
    assert "4.00x over the 1 spliced" in text
    assert "Geometric mean 2.45x over 2 rows" in text


def test_report_takes_the_last_of_several_rows(tmp_path):
    text = tables(tmp_path, row(9, 0.5), row(9, 3.0))
    assert "3.00 [2.98, 3.02]" in text and "Losses: none" in text


def test_report_keeps_a_failed_row_visible(tmp_path):
    text = tables(tmp_path, row(9, 2.0), row(12, 1.0, failure="no result within 300 s"))
    assert "failed: no result within 300 s" in line_of(text, 12)


def test_report_forgets_a_failure_that_a_later_row_mended(tmp_path):
    text = tables(tmp_path, row(12, 1.0, failure="no result within 300 s"), row(12, 1.2))
    assert "failed" not in text


def test_section_between_marks_is_replaced_and_the_rest_kept():
    text = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    assert report.section(text, "new\n") == f"before\n{report.BEGIN}\n\nnew\n\n{report.END}\nafter\n"
    with pytest.raises(ValueError, match="put the two marks"):
        report.section("no marks", "new")


def test_report_keeps_rows_of_other_options_apart(tmp_path):
    text = tables(tmp_path, row(9, 2.0), row(9, 3.0, options='{"prepack": "trust"}'))
    assert text.count("### ") == 2 and '{"prepack": "trust"}' in text
