"""`python -m tests.sandbox.adversarial [--full] [--triton]`: prints the matrix of hacks and rules, then the honest controls.

A mark stands where a rule alone keeps the candidate out: without it the candidate passes. With `--full` every rule is switched
off for every hack; without it those alone that a case names. Ends with 1 when a hack passes, a control is rejected, a case is
caught although its rule is off, or a rule catches nothing. With `--triton` the same for the forms in Triton, in its interpreter
(TRITON_INTERPRET=1); they need not show every rule.
"""

from __future__ import annotations

import argparse
import sys

from tests.sandbox.adversarial.matrix import CONTROLS, HACKS, TRITON_CONTROLS, TRITON_HACKS, heading, line, run, silent


def main() -> int:
    parser = argparse.ArgumentParser(description="the matrix of hacks and rules")
    parser.add_argument("--full", action="store_true", help="switch every rule off for every hack")
    parser.add_argument("--triton", action="store_true", help="the forms in Triton; needs TRITON_INTERPRET=1 or a GPU's driver")
    options = parser.parse_args()
    full = options.full
    cases, controls = (TRITON_HACKS, TRITON_CONTROLS) if options.triton else (HACKS, CONTROLS)
    print(heading())
    hacks = run(cases, full=full, tell=lambda found: print(line(found), flush=True))
    print("\nhonest kernels")
    honest = run(controls, full=False, tell=lambda found: print(line(found), flush=True))
    faults = [fault for found in (*hacks, *honest) for fault in found.faults()]
    faults += [] if options.triton else [f"the rule {rule} catches nothing alone" for rule in silent(hacks)]
    print(f"\n{len(hacks)} hacks, {len(honest)} honest kernels, {len(faults)} faults")
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
