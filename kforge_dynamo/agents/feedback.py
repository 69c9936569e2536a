"""What a model is told of earlier attempts: few lines, the facts first. Every function here has a bound on its lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from kforge_dynamo.agents.parsing import plain_line
from kforge_dynamo.agents.strategies import Attempt, State, predictions
from kforge_dynamo.records.outcome import Status, Trial

VERDICT_LINES = 12
HISTORY_LINES = 12
_LETTERS = 220
_EVIDENCE_LINES = 8

_ADVICE = {
    Status.COMPILE_ERROR: "Correct what the compiler names; change nothing else.",
    Status.RUNTIME_ERROR: "The kernel crashed or could not be launched: look for accesses out of bounds and a wrong plan.",
    Status.WRONG_SHAPE: "Outputs are dense, in row-major order of the shapes stated in the task.",
    Status.WRONG_DTYPE: "Each output has the dtype stated in the task.",
    Status.WRONG_STRIDE: "Outputs are dense, in row-major order.",
    Status.NON_DETERMINISTIC: "Two launches differed: a race, memory not initialised, or atomics that the plan does not declare.",
    Status.INPUT_CHANGED: "Inputs must stay as they are; use buffers of the plan for scratch.",
    Status.STRAY_WRITE: "Something outside the outputs and buffers was written: check masks and tails.",
    Status.TIMEOUT: "It took far too long or hung: look for an endless loop or a dead-lock.",
    Status.TOO_FAST: "It was faster than the device can be: it does not do the work.",
    Status.UNSTABLE_TIMING: "It is right, but its times vary too much to be compared.",
}
_CLASSES = {
    "one_hot": "one element of each row is 1: an error here is an index, a stride or a transposed operand",
    "integers": "small integers, exact in every format: an error here is no rounding but a missing or doubled term",
    "equal_rows": "all rows are equal: an error here mixes rows or reads beyond the last one",
    "scaled": "rows and columns of very different size: intermediate results overflow, or small rows are lost",
    "sparse": "most elements are 0: an error here divides by or takes the logarithm of something that may be 0",
    "large": "large values: something overflows; subtract the maximum before exp",
    "small": "small values: something underflows or a constant is added in the wrong place",
}
"""What a failure on a class of inputs suggests, by a word of the class's name."""


def verdict_lines(attempt: Attempt) -> list[str]:
    """What became of an attempt, in at most VERDICT_LINES lines of at most 220 letters."""
    if attempt.trial is None:
        return [f"not evaluated: {attempt.problem}"[:_LETTERS]]
    verdict = attempt.trial.verdict
    if verdict.passed:
        return [f"passed; {_times(attempt.trial)}; {_error(attempt.trial)}"[:_LETTERS]]
    lines = [f"{verdict.status.value} at: {_line(verdict.where) or 'build'}"]
    if verdict.error_ratio is not None:
        lines.append(f"worst error: {verdict.error_ratio:.3g} times that of eager PyTorch, which is {verdict.e0 or 0.0:.2g}")
    lines += _evidence(verdict.status, verdict.evidence)
    lines += [
        f"This class: {words}" for name, words in _CLASSES.items() if f"class {name}" in f"{verdict.where} {verdict.evidence}"
    ][:1]
    if verdict.status in _ADVICE:
        lines.append(_ADVICE[verdict.status])
    return [line[:_LETTERS] for line in lines][:VERDICT_LINES]


def _evidence(status: Status, text: str) -> list[str]:
    """The lines that matter: of a compiler those with errors and what follows, of a traceback the last."""
    lines = [_line(line) for line in text.splitlines() if line.strip()]
    if status is Status.COMPILE_ERROR:
        marked = [
            number for number, line in enumerate(lines) if re.search(r"\b(?:error|undefined|refused)\b", line, re.IGNORECASE)
        ]
        chosen = sorted({at for number in marked[:4] for at in (number, number + 1) if at < len(lines)})
        return [lines[number] for number in chosen][:_EVIDENCE_LINES] or lines[:_EVIDENCE_LINES]
    return lines[-_EVIDENCE_LINES:]


def _line(text: str) -> str:
    return " ".join(text.replace("`", "'").split())[:_LETTERS]


def _times(trial: Trial) -> str:
    if not trial.timings:
        return "not timed"
    timing = trial.timings[0]
    words = f"{timing.candidate.median_us:.1f} us against {timing.region.median_us:.1f} us of Inductor"
    anchor = f", {timing.anchor.median_us:.1f} us of the bare product" if timing.anchor is not None else ""
    return f"{words}{anchor}: {timing.speedup:.2f}x"


def _error(trial: Trial) -> str:
    ratio = trial.verdict.error_ratio
    return "error not measured" if ratio is None else f"error {ratio:.2f} times eager's"


def history_lines(state: State) -> list[str]:
    """All attempts in at most HISTORY_LINES lines: counts of verdicts, the best, the last few, predictions against outcomes."""
    done = state.attempts
    if not done:
        return []
    counts = Counter(item.trial.verdict.status.value if item.trial else "no kernel" for item in done)
    lines = [f"{len(done)} attempts: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))]
    lines += [_attempt(state, item, "best") for item in state.ranked()[:2]]
    lines += [_attempt(state, item, "recent") for item in done[-4:] if item.move.parent is not None]
    lines += prediction_lines(state)
    return list(dict.fromkeys(line[:_LETTERS] for line in lines))[:HISTORY_LINES]


def _attempt(state: State, item: Attempt, word: str) -> str:
    gain = state.gain(item)
    what = plain_line(item.idea or (item.change.what if item.change else item.move.kind), 90)
    if item.right:
        return f"{word} #{item.number}: {what}: {item.us:.1f} us" + (f" ({gain:.2f}x of its parent)" if gain else "")
    status = item.trial.verdict.status.value if item.trial else "no kernel"
    return f"{word} #{item.number}: {what}: {status}"


def prediction_lines(state: State, most: int = 4) -> list[str]:
    """The latest predictions beside what was measured, so that the next ones are better."""
    lines = []
    known = [entry for entry in predictions(state) if entry[2] is not None or not entry[0].right]  # else nothing to compare with
    for item, predicted, measured in known[-most:]:
        found = f"measured {measured:.2f}x" if measured is not None else "the result was not right"
        assert item.change is not None
        lines.append(f"predicted {predicted:.2f}x for #{item.number} ({plain_line(item.change.what, 70)}): {found}")
    return lines


def calibration(state: State) -> float:
    """How much of a predicted gain was measured on average, between 0.2 and 1.5; 1 while nothing is known."""
    shares = [
        (measured - 1.0) / (predicted - 1.0)
        for _, predicted, measured in predictions(state)
        if measured is not None and predicted > 1.01
    ]
    return min(max(sum(shares) / len(shares), 0.2), 1.5) if len(shares) >= 2 else 1.0


def join(lines: Sequence[str]) -> str:
    """Lines of a list as text."""
    return "\n".join(f"- {line}" for line in lines)
