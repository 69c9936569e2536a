"""A profile as rows and as JSON data."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kforge_dynamo.records.codec import from_text, to_text
from kforge_dynamo.records.profile import (
    Capture,
    KernelFacts,
    Limit,
    Metric,
    Occupancy,
    Picture,
    Profile,
    Roofline,
    Span,
)
from kforge_dynamo.semantics.show_profile import profile_data, scaled, show_profile

LINE = Roofline(2_000_000_000, 4_000_000, 100.0, 4e13, "a datasheet", 1e12, "another", "median, wall")
OCCUPANCY = Occupancy(2, 8, 64, (Limit("registers", 2), Limit("warps", 16)), "formula", "guide")
KERNEL = KernelFacts("product", "ptxas -v", threads=128, registers=200, spilled_bytes=0, occupancy=OCCUPANCY)
CAPTURE = Capture(
    "ncu",
    "ncu --csv",
    (Metric("duration", 175.36, "us", "product"), Metric("DRAM read", 134217728.0, "byte", "product")),
    (Metric("long scoreboard", 3.92, "cycles an instruction", "product"),),
    (Span("product", "stream 7", 0.0, 175.36),),
    ("a note of ncu",),
)
PROFILE = Profile(LINE, (KERNEL,), (CAPTURE,), (Picture("/tmp/a.png", "image/png", 2048, "00"),), ("a note",))


def test_profile_through_text_is_equal():
    assert from_text(Profile, to_text(PROFILE)) == PROFILE
    assert from_text(Profile, to_text(Profile())) == Profile()


def test_rates_and_shares_follow_from_work_and_time():
    assert LINE.intensity == 500 and LINE.flop_rate == pytest.approx(2e13) and LINE.byte_rate == pytest.approx(4e10)
    assert LINE.flop_share == pytest.approx(0.5) and LINE.byte_share == pytest.approx(0.04) and LINE.bound == "compute"
    assert replace(LINE, moved_bytes=400_000_000).bound == "memory"
    unknown = replace(LINE, time_us=None, byte_ceiling=None)
    assert (unknown.flop_rate, unknown.flop_share, unknown.byte_share, unknown.bound) == (None, None, None, None)


def test_rows_tell_every_known_number_with_unit_and_source():
    rows = show_profile(PROFILE)
    assert all(len(row) == 3 and all(isinstance(cell, str) for cell in row) for row in rows)
    table = {what: (value, source) for what, value, source in rows}
    assert table["work"][0] == "2 Gflop, 4 Mbyte, 500 flop a byte"
    assert table["arithmetic"] == ("20 Tflop/s, 50.0% of at most 40 Tflop/s", "a datasheet")
    assert table["roofline"][0] == "compute bound"
    assert table["kernel product"] == ("128 threads a block, 200 registers a thread, 0 bytes spilled", "ptxas -v")
    assert table["  occupancy"][0] == "12% (8 of 64 warps, 2 blocks), limited by registers"
    assert table["  duration of product"][0] == "175.4 us" and table["  DRAM read of product"][0] == "134.2 Mbyte"
    assert table["  stall: long scoreboard"][0] == "3.92 cycles an instruction"
    assert table["  at 0.0 us"][0] == "product for 175.36 us"
    assert table["picture"][0] == "/tmp/a.png (image/png, 2.048 kbyte)"
    assert table["  note"][0] == "a note of ncu" and table["note"][0] == "a note"


def test_unknown_numbers_have_no_row():
    line = replace(LINE, time_us=None, flop_ceiling=None, byte_ceiling=None)
    rows = show_profile(Profile(line, (KernelFacts("k", "none"),)))
    assert [row[0] for row in rows] == ["work", "kernel k"] and rows[1][1] == "nothing known"
    assert show_profile(Profile()) == []
    timed = show_profile(Profile(replace(LINE, byte_ceiling=None)))
    assert ("memory", "40 Gbyte/s, the ceiling is unknown", "another") in timed


def test_data_is_json_with_derived_shares():
    data = json.loads(json.dumps(profile_data(PROFILE)))
    assert data["roofline"]["flop_share"] == pytest.approx(0.5) and data["roofline"]["bound"] == "compute"
    assert data["kernels"][0]["occupancy"]["share"] == 0.125 and data["kernels"][0]["local_bytes"] is None
    assert profile_data(Profile())["roofline"] is None


@pytest.mark.parametrize(("value", "words"), [(0.0, "0 byte"), (999.0, "999 byte"), (1e3, "1 kbyte"), (4.16e11, "416 Gbyte")])
def test_numbers_get_a_prefix(value, words):
    assert scaled(value, "byte") == words
