"""What the generation agent is asked. Pure functions from records to text; goldens in `tests/agents/goldens/` show them whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from kforge_dynamo.agents.feedback import history_lines, join, verdict_lines
from kforge_dynamo.agents.search import Problem
from kforge_dynamo.agents.sections import Section, assemble, fenced
from kforge_dynamo.agents.strategies import Attempt, Move, State
from kforge_dynamo.agents.wording import precision_text, shapes_text, target_text
from kforge_dynamo.languages.examples import EXAMPLES, Example
from kforge_dynamo.records.candidate import Candidate, LaunchPlan
from kforge_dynamo.records.codec import plain
from kforge_dynamo.records.diagnosis import Change, Diagnosis
from kforge_dynamo.semantics.pytorch import source as as_pytorch

LIMITS = {
    "task": 3000,
    "shapes": 500,
    "precision": 300,
    "target": 400,
    "example": 1800,
    "lessons": 400,
    "reference": 4000,
    "parent": 9000,
    "partner": 3000,
    "diagnosis": 500,
    "verdict": 900,
    "history": 900,
    "order": 500,
}
"""Most tokens of each section."""

RULES = """You write one kernel that replaces a given PyTorch function on a given device. It is judged by a program: built,
compared with fp64 on hidden inputs, and timed against PyTorch's compiler. Only a right and faster kernel counts.

Rules:
- Compute all of the function, for the stated sizes and any others of its axes; every output, every element, the tails too.
- Read the strides that are passed; outputs are dense and row-major. Inputs are never written.
- No memory beyond the plan's buffers, nothing kept between calls, no dependence on values that happened to be in the inputs.
- NaN and infinity behave as in PyTorch: maximum, minimum, relu and clamp pass a NaN on.
- No files, processes, network, environment, threads of your own, inline assembler, or code outside the kernel.
- No timing tricks, no early return for special inputs, no results computed ahead. Such a kernel is refused.
- Comments speak of the code. A text that addresses a reader or a judge is refused."""
"""What holds for every kernel, whoever writes it and however it is handed in."""

SYSTEM = f"""{RULES}

Answer in this form, with nothing after it:
IDEA: one line, what this kernel does differently
GAIN: the ratio you expect of the time before over the time after
then one fenced block with the whole source, or a ```diff of the kernel shown (exact old lines), and, where the launch plan is new
or changes, one ```json block with it."""
"""The generation agent's system prompt."""


@dataclass(frozen=True, slots=True)
class Brief:
    """What one request is about, beside the state."""

    move: Move
    languages: tuple[str, ...]
    diagnosis: Diagnosis | None = None
    change: Change | None = None
    lessons: tuple[str, ...] = ()
    reference: str = ""
    reference_language: str = ""


def request(problem: Problem, state: State, brief: Brief, total: int) -> str:
    """The user prompt of one move, of at most `total` tokens."""
    move = brief.move
    parent = state.attempts[move.parent] if move.parent is not None else None
    partner = state.attempts[move.partner] if move.partner is not None else None
    last = state.last()
    example = EXAMPLES[_language(brief, parent)]
    sections = [
        Section("Task", fenced("python", as_pytorch(problem.task)), LIMITS["task"], 0),
        Section("Sizes, types, strides", shapes_text(problem.task, problem.sizes), LIMITS["shapes"], 0),
        Section("Precision", precision_text(problem.task, problem.numerics), LIMITS["precision"], 0),
        Section("Device", target_text(problem), LIMITS["target"], 0),
        Section(f"How a {example.language} kernel is called", _example(example), LIMITS["example"], 5),
        Section("Learnt from other tasks on such devices", join(brief.lessons), LIMITS["lessons"], 4),
        Section("Reference kernel in another language", _reference(brief), LIMITS["reference"], 6),
        Section("Another good kernel", _kernel(partner), LIMITS["partner"], 7),
        Section("Kernel to change", _kernel(parent), LIMITS["parent"], 3),
        Section("What limits it", _diagnosis(brief.diagnosis), LIMITS["diagnosis"], 1),
        Section("Attempts so far", join(history_lines(state)), LIMITS["history"], 2),
        Section("Last verdict", _verdict(last), LIMITS["verdict"], 0),
        Section("What to do now", _order(brief, parent, state), LIMITS["order"], 0),
    ]
    return assemble(sections, total)


def _language(brief: Brief, parent: Attempt | None) -> str:
    candidate = parent.candidate if parent is not None else None
    return candidate.language if candidate is not None and candidate.language in EXAMPLES else brief.languages[0]


def _example(example: Example) -> str:
    plan = fenced("json", plan_text(example.plan))
    return f"{join(example.rules)}\nAn example, relu(x @ w + bias) for x (m, 96) and w (96, 64):\n" + "\n".join(
        [fenced(example.fence, example.source), plan]
    )


def plan_text(plan: LaunchPlan) -> str:
    """A launch plan as the JSON that a reply gives it in."""
    data = plain(plan)
    for launch in data["launches"]:
        launch["constants"] = dict(launch["constants"])
        if not launch.get("weights_only", True):
            del launch["weights_only"]
    return json.dumps(data)


def _kernel(attempt: Attempt | None) -> str:
    """An attempt's source and plan; nothing of one whose source was refused."""
    candidate = attempt.candidate if attempt is not None else None
    if attempt is None or candidate is None:
        return ""
    head = f"#{attempt.number}, {candidate.language}, scheme {candidate.scheme}"
    return "\n".join([head, fenced(_fence(candidate), candidate.source), fenced("json", plan_text(candidate.plan))])


def _fence(candidate: Candidate) -> str:
    return EXAMPLES[candidate.language].fence if candidate.language in EXAMPLES else candidate.language


def _reference(brief: Brief) -> str:
    return fenced(brief.reference_language, brief.reference) if brief.reference else ""


def diagnosis_lines(diagnosis: Diagnosis) -> list[str]:
    """A diagnosis in words: the limit, the evidence, the changes with their predicted gains."""
    lines = [f"limit: {diagnosis.limit.value.replace('_', ' ')}", *(f"evidence: {words}" for words in diagnosis.evidence)]
    lines += [f"{item.what} ({item.why}): predicted {item.gain:.2f}x" for item in diagnosis.changes]
    return lines


def _diagnosis(diagnosis: Diagnosis | None) -> str:
    return join(diagnosis_lines(diagnosis)) if diagnosis is not None else ""


def _verdict(last: Attempt | None) -> str:
    if last is None:
        return "none yet: this is the first kernel"
    return f"attempt #{last.number}:\n{join(verdict_lines(last))}"


def _order(brief: Brief, parent: Attempt | None, state: State) -> str:
    move = brief.move
    languages = " or ".join(brief.languages)
    number = parent.number if parent is not None else 0
    if move.kind == "repair":
        return f"Kernel #{number} is not right yet. Make it right, as the last verdict of it says:\n{_faults(parent, state)}"
    if move.kind == "combine":
        return f"Improve kernel #{number} by the best idea of the other good kernel. Both are right; keep it right."
    if move.kind == "translate":
        return (
            f"Translate the reference kernel into a {languages} kernel for this device: the same idea, this device's means. "
            "If it does not compute the task above, write the line `MISMATCH: why` first, and then a kernel of your own."
        )
    if move.kind == "fresh":
        return f"Write a {languages} kernel for the task, by another way than those tried." + _variant(move)
    wish = f" First choice: {brief.change.what} ({brief.change.why})." if brief.change is not None else ""
    ideas = "".join(f"\n- try: {name}" for name in move.features)
    return f"Make kernel #{number} faster and keep it right.{wish}{_variant(move)}{ideas}"


def _variant(move: Move) -> str:
    return f" This is variant {move.variant + 1} of several asked at once: take a way of your own." if move.variant else ""


def _faults(parent: Attempt | None, state: State) -> str:
    """The verdict of the kernel to repair, unless it is the last one, which stands above."""
    return join(verdict_lines(parent)) if parent is not None and parent is not state.last() else "(above)"


def sources(candidates: Sequence[Candidate]) -> str:
    """Sources one after another, for the analyst."""
    return "\n".join(fenced(_fence(item), item.source) for item in candidates)
