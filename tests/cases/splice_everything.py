"""Importing this gives every region a winner at once: a kernel in a test language, which is the reference evaluator.

So a case runs through partition, splice and runtime with all of its regions replaced, whatever a search would have found.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import planted

planted.install("evaluator")
