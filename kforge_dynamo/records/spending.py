"""`Budget`: what a run of the agents may spend. `Spent`: what it has spent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """Upper bounds; None where a thing is not bounded. `money` is in US dollars."""

    seconds: float
    tokens: int | None = None
    money: float | None = None
    candidates: int | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """Sums of a run. `money` counts the replies whose price is known, `unpriced` the others."""

    seconds: float = 0.0
    tokens: int = 0
    money: float = 0.0
    candidates: int = 0
    requests: int = 0
    unpriced: int = 0

    def over(self, budget: Budget) -> str | None:
        """Which bound is reached, as a sentence; None while none is."""
        pairs = (
            ("seconds", self.seconds, budget.seconds),
            ("tokens", self.tokens, budget.tokens),
            ("dollars", self.money, budget.money),
            ("candidates", self.candidates, budget.candidates),
        )
        for name, spent, bound in pairs:
            if bound is not None and spent >= bound:
                return f"the budget of {bound:g} {name} is spent"
        return None

    def text(self, budget: Budget) -> str:
        """One line for people: each sum with its bound."""

        def part(value: float, bound: float | None, unit: str, digits: int) -> str:
            of = "" if bound is None else f"/{bound:,.{digits}f}"
            return f"{value:,.{digits}f}{of} {unit}"

        parts = [part(self.seconds, budget.seconds, "s", 0), part(self.tokens, budget.tokens, "tokens", 0)]
        parts += [part(self.money, budget.money, "USD", 4), part(self.candidates, budget.candidates, "candidates", 0)]
        unpriced = f", {self.unpriced} replies of unknown price" if self.unpriced else ""
        return ", ".join(parts) + unpriced
