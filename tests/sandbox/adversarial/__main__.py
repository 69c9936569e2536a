"""`python -m tests.sandbox.adversarial [--full]`: prints the matrix of hacks and rules, then the honest controls.

A mark stands where a rule alone keeps the candidate out: without it the candidate passes. With `--full` every rule is switched
off for every hack; without it those alone that a case names. Ends with 1 when a hack passes, a control is rejected, a case is
caught although its rule is off, or a rule catches nothing.
"""

from __future__ import annotations

import argparse
import sys

from tests.sandbox.adversarial.matrix import CONTROLS, HACKS, heading, line, run, silent


def main() -> int:
    parser = argparse.ArgumentParser(description="the matrix of hacks and rules")
    parser.add_argument("--full", action="store_true", help="switch every rule off for every hack")
    full = parser.parse_args().full
    print(heading())
    hacks = run(HACKS, full=full, tell=lambda found: print(line(found), flush=True))
    print("\nhonest kernels")
    honest = run(CONTROLS, full=False, tell=lambda found: print(line(found), flush=True))
    faults = [fault for found in (*hacks, *honest) for fault in found.faults()]
    faults += [f"the rule {rule} catches nothing alone" for rule in silent(hacks)]
    print(f"\n{len(hacks)} hacks, {len(honest)} honest kernels, {len(faults)} faults")
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
