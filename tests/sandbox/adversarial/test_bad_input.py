"""Candidates that are none: one clear verdict with the reason, in bounded time."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace

import pytest

from kforge_dynamo.errors import RecordError
from kforge_dynamo.records.candidate import Buffer, Launch, LaunchPlan
from kforge_dynamo.records.outcome import Status
from kforge_dynamo.sandbox.plans import check_plan
from tests.sandbox.adversarial.cases import PLAIN, Case, body, cpp
from tests.sandbox.adversarial.court import Court

HONEST = cpp(body())
ENTRY = Launch("kforge_entry", ("1",), ())
TEXTS = {
    "empty": ("", "empty"),
    "blank": (" \n\t\n", "empty"),
    "binary": ("\x7fELF\x02\x01\x01\x00\xff" * 100, "no text"),
    "half a character": ("int a; \udc80", "no text"),
    "10 MB": ("int a;\n" * 1_500_000, "characters"),
}
PLANS = {
    "no launch": (LaunchPlan((), ()), "launches kforge_entry once"),
    "another entry": (LaunchPlan((), (Launch("main", ("1",), ()),)), "launches kforge_entry once"),
    "an argument of another kind": (LaunchPlan((), (replace(ENTRY, args=("ptr:0",)),)), "none of in:I"),
    "an input that is not there": (LaunchPlan((), (replace(ENTRY, args=("in:7",)),)), "a number below 3"),
    "a negative output": (LaunchPlan((), (replace(ENTRY, args=("out:-1",)),)), "a number below 1"),
    "a stride that is not there": (LaunchPlan((), (replace(ENTRY, args=("stride:0:5",)),)), "a number below 2"),
    "a buffer that is not there": (LaunchPlan((), (replace(ENTRY, args=("buf:x",)),)), "names none of the buffers"),
    "a size that is code": (LaunchPlan((), (replace(ENTRY, args=("size:__import__('os')",)),)), "only integers"),
    "a size that divides by zero": (LaunchPlan((), (replace(ENTRY, args=("size:m // 0",)),)), "zero"),
    "an empty grid": (LaunchPlan((), (replace(ENTRY, grid=("0",)),)), "the grid"),
    "a grid of four": (LaunchPlan((), (replace(ENTRY, grid=("1",) * 4),)), "one to three"),
    "odd warps": (LaunchPlan((), (replace(ENTRY, num_warps=3),)), "num_warps"),
    "a dtype that is none": (LaunchPlan((Buffer("a", "float7", "m"),), (ENTRY,)), "float7"),
    "a name that is none": (LaunchPlan((Buffer("a b", "int8", "m"),), (ENTRY,)), "a name of letters"),
    "two buffers of one name": (LaunchPlan((Buffer("a", "int8", "m"),) * 2, (ENTRY,)), "one name"),
    "negative memory": (LaunchPlan((Buffer("a", "int8", "m - 100"),), (ENTRY,)), "is -63"),
    "an exabyte": (LaunchPlan((Buffer("a", "int8", "m * 1000000000000000000"),), (ENTRY,)), "does not fit"),
    "a terabyte": (LaunchPlan((Buffer("a", "int8", "m * 30000000000"),), (ENTRY,)), "MiB"),
    "many launches": (LaunchPlan((), (ENTRY,) * 100), "at most"),
    "an endless expression": (LaunchPlan((), (replace(ENTRY, args=("size:" + "(" * 5000,)),)), "does not parse"),
}


@pytest.fixture(scope="module")
def court():
    return Court()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("what", TEXTS)
def test_source_that_is_no_text_rejected_in_words_and_at_once(court, what):
    source, words = TEXTS[what]
    court.judge(Case("honest", PLAIN, HONEST, ()))
    for language in ("cpp", "triton"):
        start = time.monotonic()
        candidate = replace(HONEST, source=source, language=language)
        verdict = court.judge(Case(what, PLAIN, candidate, ()))
        if language == "triton" and verdict.status is Status.COMPILE_ERROR:
            assert "Triton" in verdict.evidence  # it does not run here at all, and says so first
            continue
        assert verdict.status is Status.REJECTED, verdict
        assert words in verdict.evidence
        assert len(verdict.evidence) < 1000
        assert time.monotonic() - start < 60.0


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_source_with_another_entry_compile_error_that_names_the_entry(court):
    candidate = replace(HONEST, source=HONEST.source.replace("kforge_entry", "main_entry").replace('extern "C"', ""))
    verdict = court.judge(Case("entry", PLAIN, candidate, ()))
    assert verdict.status is Status.COMPILE_ERROR, verdict
    assert "kforge_entry" in verdict.evidence


@pytest.mark.parametrize("what", PLANS)
def test_malformed_plan_says_what_was_expected_and_found(court, what):
    plan, words = PLANS[what]
    with pytest.raises(RecordError) as caught:
        court.judge(Case(what, PLAIN, replace(HONEST, plan=plan), ()))
    assert words in str(caught.value), caught.value


def test_plan_of_every_kind_of_argument_is_fine():
    args = ("in:0", "out:0", "buf:a", "size:cdiv(m, 16)", "stride:0:1", "desc:in:1:48:64:64:16:16")
    check_plan(LaunchPlan((Buffer("a", "int8", "m"),), (replace(ENTRY, args=args, grid=("m", "2")),)), PLAIN, (37,))
