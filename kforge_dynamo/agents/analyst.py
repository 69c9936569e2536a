"""The performance-analysis agent: what limits a right kernel, and what to change, with predictions.

Rules come first and suffice; a model, if one is given, sees the numbers, the rules' diagnosis, the source and how earlier
predictions turned out, and may say it better. Whatever it answers that is no diagnosis leaves the rules' standing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kforge_dynamo.agents.facts import Facts, facts
from kforge_dynamo.agents.feedback import calibration, join, prediction_lines
from kforge_dynamo.agents.model import Ask
from kforge_dynamo.agents.parsing import plain_line, read_data
from kforge_dynamo.agents.prompts import diagnosis_lines, sources
from kforge_dynamo.agents.rules import MOST_CHANGES, diagnose
from kforge_dynamo.agents.search import Problem
from kforge_dynamo.agents.sections import Section, assemble, fenced
from kforge_dynamo.agents.strategies import Attempt, State
from kforge_dynamo.agents.wording import shapes_text, target_text
from kforge_dynamo.records.diagnosis import Change, Diagnosis, Limit
from kforge_dynamo.semantics.pytorch import source as as_pytorch

SYSTEM = """You read measurements of a kernel and say what limits it and what to change in its code. You do not write code.
Judge by the numbers, not by habit; a change is worth naming only if a number supports it.

Answer with one JSON object and nothing else:
{"limit": one of LIMITS, "evidence": [up to three short texts with numbers],
 "changes": [one to three of {"what": a change of the code in one line, "why": the number it rests on,
 "gain": expected ratio of the time before over the time after}]}""".replace("LIMITS", ", ".join(item.value for item in Limit))
"""The analysis agent's system prompt."""

TOTAL = 8000
REPLY_TOKENS = 1500
_LINE = 200
_LIMITS = {"task": 1500, "numbers": 900, "rules": 500, "kernel": 4000, "predictions": 300}


def by_rules(problem: Problem, state: State, attempt: Attempt) -> Diagnosis | None:
    """The rules' diagnosis of an attempt; None where it was not timed."""
    if attempt.trial is None or not attempt.right:
        return None
    return diagnose(facts(problem, attempt.trial), problem.target.kind, problem.floor_us, calibration(state))


def request(problem: Problem, state: State, attempt: Attempt, first: Diagnosis, pictures: Sequence[str] = ()) -> Ask:
    """The question to a model: numbers, rules' diagnosis, source, predictions and outcomes. `pictures` are screenshots of a
    profiler as `data:` addresses."""
    assert attempt.trial is not None and attempt.candidate is not None
    sections = [
        Section(
            "Task",
            fenced("python", as_pytorch(problem.task)) + "\n" + shapes_text(problem.task, problem.sizes),
            _LIMITS["task"],
            2,
        ),
        Section("Device", target_text(problem), 400, 0),
        Section("Numbers", numbers_text(facts(problem, attempt.trial)), _LIMITS["numbers"], 0),
        Section("What the rules say", join(diagnosis_lines(first)), _LIMITS["rules"], 0),
        Section("Kernel", sources([attempt.candidate]), _LIMITS["kernel"], 3),
        Section("Earlier predictions", join(prediction_lines(state)), _LIMITS["predictions"], 1),
    ]
    return Ask(attempt.step, "analyst", SYSTEM, assemble(sections, TOTAL), REPLY_TOKENS, tuple(pictures))


def numbers_text(found: Facts) -> str:
    """Facts as lines, one a number, in the order of their names."""
    return "\n".join(f"- {name.replace('_', ' ')}: {value:.4g}" for name, value in sorted(found.items()))


def refined(reply: str, first: Diagnosis, author: str) -> Diagnosis:
    """The model's diagnosis; what of it is no diagnosis is taken from `first`."""
    data = read_data(reply)
    if not isinstance(data, dict):
        return first
    changes = [change for item in _list(data.get("changes")) if (change := _change(item)) is not None]
    if not changes:
        return first
    evidence = tuple(plain_line(str(item), _LINE) for item in _list(data.get("evidence"))[:MOST_CHANGES])
    limits = {item.value: item for item in Limit}
    limit = limits.get(str(data.get("limit", "")).strip().lower().replace(" ", "_"), first.limit)
    changes.sort(key=lambda change: -change.gain)
    return Diagnosis(limit, evidence or first.evidence, tuple(changes[:MOST_CHANGES]), author)


def _change(item: Any) -> Change | None:
    if not isinstance(item, dict) or not isinstance(item.get("what"), str) or not item["what"].strip():
        return None
    try:
        gain = float(str(item.get("gain", 1.1)).strip().rstrip("xX"))
    except ValueError:
        gain = 1.1
    bounded = min(max(gain, 1.0), 10.0) if gain == gain else 1.1
    return Change(plain_line(item["what"], _LINE), plain_line(str(item.get("why", "")), _LINE), bounded)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
