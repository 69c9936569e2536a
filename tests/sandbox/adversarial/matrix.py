"""Hacks x rules: the verdict on each candidate, and the rules without which it would pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kforge_dynamo.records.outcome import Status, Verdict
from tests.sandbox.adversarial import controls, cpp_catalogue, cpp_own, plants, triton_cases
from tests.sandbox.adversarial.cases import Case
from tests.sandbox.adversarial.court import RULES, Court

HACKS: tuple[Case, ...] = (*cpp_catalogue.CATALOGUE, *cpp_own.OWN, *plants.PLANTS)
CONTROLS: tuple[Case, ...] = tuple(controls.CONTROLS)
TRITON_HACKS, TRITON_CONTROLS = triton_cases.HACKS, triton_cases.CONTROLS


@dataclass(frozen=True)
class Found:
    """A case, the verdict with all rules on, and the rules tried off, one at a time, with whether it then passed."""

    case: Case
    verdict: Verdict
    without: dict[str, bool]

    def faults(self) -> list[str]:
        """What is not as the case says it must be."""
        name, verdict = self.case.name, self.verdict
        found = []
        if verdict.status not in self.case.statuses or self.case.words not in verdict.evidence:
            wanted = "/".join(status.name for status in self.case.statuses) + (
                f" with {self.case.words!r}" if self.case.words else ""
            )
            found.append(f"{name}: {verdict.status.name}, expected {wanted}: {verdict.where}: {verdict.evidence[:400]}")
        found += [f"{name}: still caught without the rule {rule}" for rule in self.case.alone if not self.without[rule]]
        return found


def run(cases: Sequence[Case], *, full: bool, tell: Callable[[Found], None] = lambda found: None) -> list[Found]:
    """Judges `cases`; with `full` without each rule in turn, else without those alone that a case names."""
    court, found = Court(), []
    for case in cases:
        verdict = court.judge(case)
        tried = RULES if full and not verdict.passed else case.alone
        # how often a timed kernel is called depends on the machine's mood, and so whether another rule sees it first
        attempts = range(3 if case.timed else 1)
        without = {rule: any(_passes(court.judge(case, rule)) for _ in attempts) for rule in tried}
        found.append(Found(case, verdict, without))
        tell(found[-1])
    return found


def _passes(verdict: Verdict) -> bool:
    """Whether nothing was found against the candidate; a busy machine that gives no steady time has nothing against it."""
    return verdict.passed or verdict.status is Status.UNSTABLE_TIMING


def silent(found: Sequence[Found]) -> list[str]:
    """Rules that catch nothing alone."""
    loud = {rule for item in found for rule, passed in item.without.items() if passed}
    return [rule for rule in RULES if rule not in loud]


def line(found: Found) -> str:
    """One row of the matrix: what the rules say, and a mark under each without which the candidate would pass."""
    marks = "".join(" x" if found.without.get(rule) else " ." for rule in RULES)
    row = f"#{found.case.row}" if found.case.row else ""
    return f"{found.case.name[:52]:52} {row:>4} {found.verdict.status.value:18}{marks}"


def heading() -> str:
    """The rules' names, written downwards."""
    depth = max(len(rule) for rule in RULES)
    rows = ["".join(f" {rule.rjust(depth)[at]}" for rule in RULES) for at in range(depth)]
    return "\n".join(" " * 76 + row for row in rows)
