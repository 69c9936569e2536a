"""The process that measures rows: an order a line on stdin, an answer a line on the given descriptor.

It lives over many rows, since importing torch and starting a device take longer than a row; whoever reads the answers
ends it after a failure and starts another. Nothing else writes to the descriptor.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

from benchmarks.row import Order, measure_row


def main() -> None:
    """Serve until stdin ends."""
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as answers:
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in sys.stdin:
            fields = json.loads(line)
            order = Order(**{**fields, "variants": tuple(fields["variants"])})
            try:
                answer = {"row": measure_row(order)}
            except Exception as error:  # noqa: BLE001 - a row may fail in any way; its reason is the row
                traceback.print_exc()
                answer = {"failure": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
