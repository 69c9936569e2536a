"""Registers, spills and shared memory of the first schedules of given products, by the compiler alone: no GPU is needed.

    python benchmarks/probes/triton_resources.py 1024x8192x8192 128x32768x32768:strict [--first 4] [--arch 90] [--all]

A shape is MxKxN with a precision setting behind a colon (`highest` where there is none). One line a kernel of each schedule:
registers a thread, instructions that spill (and bytes of stack), shared memory. Without --all the exact second launch, which
runs for tiles that are not finite only, is left out. Ends with 1 where a first schedule spills.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "codegen" / "triton")]

from triton_ahead import HOPPER, compiled  # noqa: E402
from triton_tasks import Builder  # noqa: E402

from kforge_dynamo.codegen import triton as generator  # noqa: E402
from kforge_dynamo.records.codec import plain  # noqa: E402
from kforge_dynamo.records.target import Numerics  # noqa: E402


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="+")
    parser.add_argument("--first", type=int, default=4)
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    spilled = 0
    for text in options.shapes:
        shape, _, setting = text.partition(":")
        m, k, n = (int(size) for size in shape.split("x"))
        builder = Builder()
        task = builder.task(builder.gelu(builder.linear(k, n, options.dtype)))
        numerics = Numerics(setting or "highest", fp16_reduced=False, bf16_reduced=False, deterministic=False)
        print(f"{shape} {numerics.fp32}", flush=True)
        for schedule in generator.space(task, (m,), HOPPER, numerics)[: options.first]:
            print("  " + json.dumps(plain(schedule)), flush=True)
            with tempfile.TemporaryDirectory() as folder:
                made = compiled(pathlib.Path(folder), task, schedule, ("cuda", options.arch, 32), (m,))
            for kernel in made:
                if kernel["name"].endswith("_exact") and not options.all:
                    continue
                spilled += kernel["spills"]
                words = f"{kernel['registers']:4d} registers {kernel['spills']:5d} spills ({kernel['stack']} bytes)"
                print(f"    {kernel['name']:22s} {words} {kernel['shared']:7d} bytes shared", flush=True)
    return 1 if spilled else 0


if __name__ == "__main__":
    sys.exit(main())
