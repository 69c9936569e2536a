"""kforge: `torch.compile(model, backend="kforge")` runs GEMM + epilogue regions on kernels made and proven for this device.

Nothing need be imported to use it; these names look at what it did.
"""

from kforge_dynamo.keeper import invalidate
from kforge_dynamo.ledger import RegionReport, report, reset, stats

__all__ = ["RegionReport", "invalidate", "report", "reset", "stats"]
