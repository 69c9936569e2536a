"""Nsight Compute's CSV in both layouts, its refusals, and a run on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from kforge_dynamo.records.codec import from_text, to_text
from kforge_dynamo.records.profile import Capture
from kforge_dynamo.sandbox.profile import ncu

FIXTURES = Path(__file__).parent / "fixtures"


def metrics(capture, kernel):
    return {item.name: (item.value, item.unit) for item in capture.metrics if item.kernel == kernel}


def test_raw_page_gives_metrics_of_each_kernel_with_units():
    found = ncu.parse((FIXTURES / "ncu_raw.csv").read_text(), "test")
    product = metrics(found, "product")
    assert product["duration"] == (pytest.approx(175.36), "us"), "base units are turned into microseconds"
    assert product["compute throughput"] == (pytest.approx(88.2), "%"), "two launches of a kernel become their median"
    assert product["DRAM read"] == (134217728.0, "byte") and product["registers a thread"] == (200.0, "register/thread")
    reduce = metrics(found, "reduce")
    assert reduce["duration"] == (pytest.approx(9.6), "us")
    assert "L2 hit rate" not in reduce, "n/a is unknown, not zero"
    assert found.notes == () and from_text(Capture, to_text(found)) == found


def test_stalls_are_ordered_and_selected_is_none():
    found = ncu.parse((FIXTURES / "ncu_raw.csv").read_text(), "test")
    product = [(item.name, item.value) for item in found.stalls if item.kernel == "product"]
    assert product == [("math pipe throttle", pytest.approx(6.21)), ("long scoreboard", pytest.approx(3.92)), ("barrier", 0.85)]
    reduce = [item.name for item in found.stalls if item.kernel == "reduce"]
    assert reduce == ["long scoreboard", "barrier"], "a reason that never occurred is left out"


def test_details_page_gives_the_same_names():
    found = ncu.parse((FIXTURES / "ncu_details.csv").read_text(), "test")
    assert metrics(found, "product<128>") == {
        "duration": (175.36, "us"),
        "memory throughput": (41.5, "%"),
        "achieved occupancy": (12.43, "%"),
    }


def test_forbidden_counters_are_a_note_with_the_way_out():
    words = "==PROF== Connected to process 7\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters\n"
    found = ncu.parse(words, "test")
    assert found.metrics == () and "CAP_SYS_ADMIN" in found.notes[0] and len(found.notes) == 1


def test_other_refusals_are_kept_in_the_tool_s_words():
    found = ncu.parse("==ERROR== The application returned an error code (1).\nTraceback ...", "test")
    assert found.notes == ("==ERROR== The application returned an error code (1).",)
    assert ncu.parse("", "test").notes == ("ncu profiled no kernel",)
    assert ncu.parse("==WARNING== No kernels were profiled.\n", "test").notes == ("==WARNING== No kernels were profiled.",)


def test_torn_output_is_read_as_far_as_it_goes():
    text = (FIXTURES / "ncu_raw.csv").read_text()
    cut = text[: text.index('"2","4242"') + 60]
    assert {item.kernel for item in ncu.parse(cut, "test").metrics} == {"product"}


def test_command_profiles_between_start_and_stop_alone():
    words = ncu.command("/opt/ncu")
    assert words[0] == "/opt/ncu" and words[words.index("--profile-from-start") + 1] == "off"
    assert words[words.index("--page") + 1] == "raw" and words.count("--section") == len(ncu.SECTIONS)
