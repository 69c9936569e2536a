"""The interface that proposes candidates: the built-in generator and the language models behind one door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.outcome import Trial
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Task


class Generator(Protocol):
    """Proposes kernels for a task."""

    name: str
    version: str
    """Part of "no winner": a newer version searches again."""

    def languages(self, target: Target) -> tuple[str, ...]:
        """The languages it would write for this target."""

    def rejects(self, task: Task, target: Target) -> str | None:
        """Why it cannot write this task for this target, None when it can."""

    def gain_us(self, task: Task, sizes: Sequence[int], target: Target) -> float:
        """Estimated time saved a call, for the order in which regions are searched; never shown as a measurement."""

    def propose(
        self,
        task: Task,
        sizes: Sequence[int],
        target: Target,
        numerics: Numerics,
        history: Sequence[Trial],
        count: int,
    ) -> Sequence[Candidate]:
        """At most `count` new candidates, best guess first; empty when there is nothing left to try."""


@runtime_checkable
class Foreseeing(Protocol):
    """A generator that can say for nothing what it would propose next."""

    def foresee(
        self,
        task: Task,
        sizes: Sequence[int],
        target: Target,
        numerics: Numerics,
        history: Sequence[Trial],
        count: int,
    ) -> Sequence[Candidate]:
        """What the next calls of `propose` would return if nothing were learned meanwhile."""
