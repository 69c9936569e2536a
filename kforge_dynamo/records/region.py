"""Why a graph node is not part of any region, in words a user can act on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """The kinds of rejection; the sentence beside it names the node's own facts."""

    NO_ANCHOR = "no_anchor"
    UNSUPPORTED_OP = "unsupported_op"
    UNSUPPORTED_DTYPE = "unsupported_dtype"
    UNSUPPORTED_LAYOUT = "unsupported_layout"
    CROSSES_ROWS = "crosses_rows"
    NOT_CONVEX = "not_convex"
    SYMBOLIC_SIZE = "symbolic_size"
    EMPTY = "empty"
    RANDOM = "random"
    MUTATION = "mutation"
    DEVICE = "device"
    NOT_EXPRESSIBLE = "not_expressible"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Rejection:
    """`node` is the graph node's name, `op` what it calls, `sentence` says what stood in the way."""

    node: str
    op: str
    reason: Reason
    sentence: str
