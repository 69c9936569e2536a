"""How a step of the lowering says that a graph node cannot join a region."""

from __future__ import annotations

from kforge_dynamo.records.region import Reason


class Refused(Exception):
    """Raised inside the lowering, always caught there: it becomes the node's `Rejection`."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence
