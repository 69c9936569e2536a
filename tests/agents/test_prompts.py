"""Prompts: whole ones as goldens that a person can read, and their bounds over a long run.

A golden that should change: KFORGE_WRITE_GOLDENS=1 python -m pytest tests/agents/test_prompts.py, then read the difference.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from agent_scene import BUDGET, GPU, PLAN, PROBLEM, evaluate, kernel, trial_of

from kforge_dynamo.agents import analyst, prompts
from kforge_dynamo.agents.campaign import PROMPT_TOKENS
from kforge_dynamo.agents.feedback import HISTORY_LINES, VERDICT_LINES, history_lines, verdict_lines
from kforge_dynamo.agents.loop import Loop, Means, Setup
from kforge_dynamo.agents.model import Reply
from kforge_dynamo.agents.parsing import read_data, read_plan
from kforge_dynamo.agents.rules import diagnose
from kforge_dynamo.agents.sections import Section, assemble, fenced, shortened, tokens
from kforge_dynamo.agents.strategies import Attempt, Move, State
from kforge_dynamo.languages.examples import EXAMPLES
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.diagnosis import Change
from kforge_dynamo.records.outcome import Status, Trial, Verdict

GOLDENS = Path(__file__).parent / "goldens"
REPAIR = prompts.Brief(Move("repair", 0), ("cpp",))


def candidate(language="cpp"):
    example = EXAMPLES[language]
    return Candidate(language, example.source, example.plan, "", "ieee", "test")


def ended(status, where, evidence):
    """A trial that ended before anything was computed."""
    return Trial(candidate(), Verdict(status, None, None, where, evidence), ())


def attempt(number, trial, kind="seed", parent=None, **more):
    return Attempt(number, number, number, Move(kind, parent), trial.candidate, trial, str(number), **more)


def state(*attempts, kind="cpu"):
    return State(PLAN, kind, attempts=list(attempts))


def same_as_golden(name, text):
    path = GOLDENS / f"{name}.txt"
    if os.environ.get("KFORGE_WRITE_GOLDENS"):
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; see the docstring of this file"


def test_prompt_for_a_first_cpp_kernel():
    brief = prompts.Brief(
        Move("fresh"), ("cpp",), lessons=("wider loads: 1.25x (limit memory, cpp, float32 about 64x128x64, avx2)",)
    )
    same_as_golden("fresh_cpp", prompts.SYSTEM + "\n\n" + prompts.request(PROBLEM, state(), brief, PROMPT_TOKENS))


def test_prompt_to_repair_an_inaccurate_cpp_kernel():
    wrong = trial_of(
        candidate(), None, Status.INACCURATE, "output 0, class one_hot, sizes (64,): row 3 has an RMS error of 0.5 (7 such)"
    )
    same_as_golden("repair_cpp", prompts.request(PROBLEM, state(attempt(0, wrong)), REPAIR, PROMPT_TOKENS))


def test_prompt_to_improve_a_triton_kernel():
    problem = replace(PROBLEM, target=GPU, floor_us=2.0)
    first = attempt(0, trial_of(candidate("triton"), 80.0))
    change = Change("one barrier a step", "stalls", 1.3)
    second = attempt(1, trial_of(candidate("triton"), 90.0), "optimise", 0, change=change, idea="one barrier a step")
    scene = state(first, second, kind="cuda")
    diagnosis = analyst.by_rules(problem, scene, first)
    brief = prompts.Brief(Move("optimise", 0), ("triton",), diagnosis, diagnosis.changes[0])
    same_as_golden("optimise_triton", prompts.request(problem, scene, brief, PROMPT_TOKENS))
    ask = analyst.request(problem, scene, first, diagnosis)
    same_as_golden("analysis_triton", ask.system + "\n\n" + ask.user)


def test_prompt_to_repair_a_cpp_kernel_that_does_not_compile():
    error = (
        "kernel.cpp: In function 'void kforge_entry(...)':\n"
        "kernel.cpp:14:31: error: 'fma' was not declared in this scope\n   14 | sum = fma(a, b, sum);\n      |       ^~~"
    )
    broken = attempt(0, ended(Status.COMPILE_ERROR, "build", error))
    same_as_golden("repair_cpp_compile", prompts.request(PROBLEM, state(broken), REPAIR, PROMPT_TOKENS))


def test_prompt_after_a_kernel_that_was_refused_does_not_show_it():
    refused = attempt(0, ended(Status.REJECTED, "guardrails", "line 3, column 1: [include] <sys/mman.h>: not allowed"))
    brief = prompts.Brief(Move("fresh"), ("cpp",))
    same_as_golden("after_refusal_cpp", prompts.request(PROBLEM, state(refused), brief, PROMPT_TOKENS))


def test_prompt_to_translate_a_cuda_kernel_says_what_to_do_if_it_is_another_task():
    source = (Path(__file__).resolve().parents[2] / "examples" / "linear_relu.cu").read_text()
    brief = prompts.Brief(Move("translate"), ("cpp",), reference=source, reference_language="cuda")
    text = prompts.request(PROBLEM, state(), brief, PROMPT_TOKENS)
    assert f"```cuda\n{source}```" in text and "MISMATCH: why" in text
    same_as_golden("translate_cuda_to_cpp", text)


def test_prompt_to_combine_two_triton_kernels():
    problem = replace(PROBLEM, target=GPU, floor_us=2.0)
    first = attempt(0, trial_of(candidate("triton"), 80.0))
    second = attempt(1, trial_of(candidate("triton"), 85.0), "fresh", idea="rows of a block share the weight's tile")
    brief = prompts.Brief(Move("combine", 0, 1, features=("row statistics inside the kernel of the product",)), ("triton",))
    same_as_golden("combine_triton", prompts.request(problem, state(first, second, kind="cuda"), brief, PROMPT_TOKENS))


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_plan_in_the_prompt_is_read_back_as_it_was(name):
    plan = EXAMPLES[name].plan
    assert read_plan(read_data(prompts.plan_text(plan)), ("m",)) == plan


class Endless:
    """A model that always has another kernel, with much text around it."""

    name = "endless"

    def __init__(self):
        self.asked = []

    def ask(self, ask, timeout_s):
        self.asked.append(ask)
        number = len(self.asked)
        words = ("wrong", "compile", f"us {500 - number}")[number % 3]
        filler = "\n".join(f"// line {line} of kernel {number}, which says nothing" for line in range(900))
        return Reply(
            "I thought about it. " * 500 + kernel(f"{words}\n{filler}", f"idea {number} " + "very long " * 80, "1.3"), 10, 10, 0.0
        )


@pytest.mark.parametrize("total", [9_000, PROMPT_TOKENS])
def test_fifty_rounds_never_exceed_the_budget_and_keep_task_rules_and_last_verdict(total):
    model = Endless()
    setup = Setup(replace(PLAN, iterations=50, patience=50), BUDGET, ("cpp",), "ieee", total, 4_000, 60.0)
    loop = Loop(PROBLEM, setup, Means(model, None, evaluate, lambda *a, **k: None, lambda text: None, lambda: 0.0))
    loop.run(())
    assert len(model.asked) == 50
    for ask in model.asked:
        assert tokens(ask.user) <= total
        assert "def reference(x0, x1, x2" in ask.user and "return " in ask.user
        assert "Rules:" in ask.system and "Such a kernel is refused" in ask.system
        assert "## Last verdict" in ask.user and "## What to do now" in ask.user
    for before, ask in zip(loop.state.attempts, model.asked[1:], strict=False):
        assert verdict_lines(before)[0] in ask.user
    assert tokens(model.asked[-1].user) < 1.1 * max(tokens(ask.user) for ask in model.asked[5:10])


def test_feedback_is_few_lines_whatever_happened():
    error = "\n".join(f"kernel.cpp:{line}:1: error: something is wrong here" for line in range(500))
    broken = attempt(0, trial_of(candidate(), None, Status.COMPILE_ERROR, error))
    trace = attempt(
        1, trial_of(candidate(), None, Status.RUNTIME_ERROR, "\n".join(f"  frame {line}" for line in range(500)) + "\nSIGSEGV")
    )
    assert len(verdict_lines(broken)) <= VERDICT_LINES and len(verdict_lines(trace)) <= VERDICT_LINES
    assert any("SIGSEGV" in line for line in verdict_lines(trace))
    many = state(*(attempt(number, trial_of(candidate(), 100.0 - number), "optimise", 0) for number in range(60)))
    assert len(history_lines(many)) <= HISTORY_LINES


def test_of_a_compiler_the_lines_with_errors_are_told():
    text = (
        "In file included from x:\nnote: long story\nkernel.cpp:7:3: error: 'foo' was not declared\n    7 |   foo();\n"
        + "noise\n" * 50
    )
    lines = verdict_lines(attempt(0, trial_of(candidate(), None, Status.COMPILE_ERROR, text)))
    assert any("'foo' was not declared" in line for line in lines) and not any("noise" in line for line in lines)


def test_long_text_loses_its_middle_and_says_how_many_lines():
    text = "\n".join(f"line {number}" for number in range(1000))
    short = shortened(text, 200)
    assert tokens(short) <= 200
    assert short.startswith("line 0") and short.endswith("line 999")
    left_out = int(re.search(r"\.\.\. (\d+) lines left out", short)[1])
    assert left_out + len(short.splitlines()) - 1 == 1000


def test_heavy_sections_give_way_and_those_of_weight_zero_stay():
    sections = [Section("keep", "k " * 100, 200, 0), Section("light", "l " * 100, 200, 1), Section("heavy", "h\n" * 100, 200, 5)]
    text = assemble(sections, 150)
    assert "## keep\n" + "k " * 99 in text and "## light" in text and "## heavy" not in text


def test_fence_is_longer_than_any_inside():
    assert fenced("md", "a ```` b").startswith("`````md\n")


def test_rules_give_numbers_and_gains_within_the_roofline():
    facts = {"candidate_us": 100.0, "anchor_us": 60.0, "flop": 1e9, "bytes": 1e6, "spilled_bytes": 256.0, "buffer_bytes": 0.0}
    found = diagnose(facts, "cuda", 80.0)
    assert found.author == "rules" and found.changes and found.evidence
    assert all(1.0 <= change.gain <= 100.0 / 80.0 for change in found.changes)
