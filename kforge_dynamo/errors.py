"""Every exception that kforge raises on purpose.

    KforgeError
    ├── SettingsError      an option or an environment name has no such value
    ├── RecordError        a record read from text is not what its schema says
    ├── StoreError         the cache cannot be used (the message says why and what to do)
    ├── ToolchainError     a compiler or a runtime that a language needs is missing
    │   └── LostError      an evaluator is gone, with its process, its device or its machine
    ├── BuildError         generated source did not compile (data for the search, not for the user)
    │   └── GuardrailError it says what a candidate may not say
    ├── MissError          a region has no winner and `on_miss="error"` was asked for
    └── ModelError         a language model gave no usable reply (the message says why and what to do)

A graph node that cannot join a region is not an error: see `records.region.Rejection`.
"""


class KforgeError(Exception):
    """Base of all: `except KforgeError` catches what kforge raises on purpose."""


class SettingsError(KforgeError, ValueError):
    """An option has an unknown name or a value outside its domain."""


class RecordError(KforgeError, ValueError):
    """Text from disk or from another process does not describe the record it claims to be."""


class StoreError(KforgeError, OSError):
    """A cache layer cannot be read or written."""


class ToolchainError(KforgeError, RuntimeError):
    """A compiler, a runtime or a device that a language needs is not there."""


class LostError(ToolchainError):
    """An evaluator of a crew is gone; what it was asked is asked again elsewhere."""


class BuildError(KforgeError, RuntimeError):
    """The source of a candidate did not compile; the text is the compiler's."""


class GuardrailError(BuildError):
    """The source of a candidate says what no candidate may; the text names the guardrail, the place and the reason."""


class MissError(KforgeError, LookupError):
    """No winner is stored for a region, and the user asked for an error in that case."""


class ModelError(KforgeError, RuntimeError):
    """A language model gave no usable reply. `kind` is one of the words below; the text is one sentence with the next step.

    "unknown" (no such model), "key" (missing, malformed or refused), "down" (no connection, a failing server), "stalled" (no
    reply within the time limit), "rate" (too many requests), "refused" (the request was not accepted), "filtered" (withheld by a
    content filter), "empty", "truncated", "malformed" (no reply of the protocol), "missing" (a record has no such step).
    """

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind
