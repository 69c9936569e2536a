"""`Guardrail` and `Violation`: what a source may not say, and where it does. `Guards`: the judge's rules, each with a switch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A rule about the text of a candidate: `name` as it stands in verdicts, `reason` as a person is told it."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Violation:
    """One place where a candidate breaks a guardrail. `line` and `column` count from 1; 0 where the rule is about the whole."""

    guardrail: str
    line: int
    column: int
    words: str

    def __str__(self) -> str:
        place = f"line {self.line}, column {self.column}: " if self.line else ""
        return f"{place}[{self.guardrail}] {self.words}"


@dataclass(frozen=True, slots=True)
class Guards:
    """Every rule of the judge, all on. No option of a user reaches this record: tests switch rules off, one at a time, to see
    that each catches something that no other rule does.

    With a rule off the judge does what a harness without it would do; the comments say what that is.
    """

    source: bool = True
    """Guardrails on the text; off: any text is compiled."""
    object: bool = True
    """Symbols and sections of what was compiled; off: any library is loaded."""
    precision: bool = True
    """A number format that the precision setting does not allow is named; off: any format may stand in the source."""
    plan: bool = True
    """Atomics under deterministic algorithms are refused; off: they are not."""
    discrimination: bool = True
    """Regions whose right result proves nothing are not testable; off: every class counts."""
    classes: bool = True
    """All classes of inputs; off: N(0, 1) alone."""
    domains: bool = True
    """Inputs stay in the domain that their uses imply; off: masks, divisors and indices are drawn as any other."""
    e0: bool = True
    """The error is measured against that of the user's setting; off: against bf16 operands."""
    floor: bool = True
    """Half an ulp (fp32: two) is all that is given; off: 1e-2, for fp32 1e-4, as fixed tolerances do."""
    exact: bool = True
    """Bit for bit where eager is; off: within the floor."""
    finite: bool = True
    """NaN and infinity where the reference has them; off: such elements are not looked at."""
    discrete: bool = True
    """Booleans, integers and indices are right away from ties; off: not looked at."""
    rms: bool = True
    """The root mean square over all seeds; off: not looked at."""
    tail: bool = True
    """The 99.9th percentile; off: not looked at."""
    peak: bool = True
    """The largest error; off: not looked at."""
    rows: bool = True
    """Every row by its own size; off: not looked at."""
    columns: bool = True
    """Every column by its own size; off: not looked at."""
    whole: bool = True
    """Rows that the oracle does not cover are compared with eager; off: sampled rows alone."""
    deterministic: bool = True
    """Two launches agree bit for bit; off: one launch."""
    inputs: bool = True
    """Inputs are unchanged afterwards; off: not looked at."""
    zones: bool = True
    """Bytes around inputs and outputs are unchanged; off: not looked at."""
    prefill: bool = True
    """Outputs hold NaN before the launch; off: zeros, as fresh memory often does."""
    form: bool = True
    """Outputs keep shape, dtype, strides and memory; off: what is there is compared."""
    state: bool = True
    """The library's own memory is the same after the launches; off: not looked at."""
    threads: bool = True
    """No threads beyond those given; off: not counted."""
    trap: bool = True
    """No torch operation runs inside a launch; off: any may."""
    sizes: bool = True
    """Other sizes of the domain are checked; off: one size."""
    timed: bool = True
    """Outputs of timed calls are compared; off: they are thrown away."""
    roofline: bool = True
    """A time below what the device's peaks allow is refused; off: it is believed."""
    reused: bool = True
    """After timing, addresses that were timed hold other values and must give other results; off: not tried."""


ALL = Guards()
"""What a user gets."""
