"""Another name of `kforge_dynamo`, and the module by which torch's logging knows "kforge": `TORCH_LOGS="+kforge"`.

torch reads TORCH_LOGS while it is imported, before any backend can register, and accepts the names of modules that can be
found; the logger of kforge has this name.
"""

from kforge_dynamo import RegionReport, invalidate, report, reset, stats

__all__ = ["RegionReport", "invalidate", "report", "reset", "stats"]
