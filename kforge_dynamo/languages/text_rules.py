"""What holds for the source of any language before anything else is read: a bounded amount of text. And how a refusal is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kforge_dynamo.errors import GuardrailError
from kforge_dynamo.records.guardrail import Guardrail, Violation

MOST_CHARACTERS = 1 << 20
"""The built-in generator's longest source has some 1e5."""
_MOST_NAMED = 5


def check_text(source: str, guardrails: Sequence[Guardrail], find: Callable[[], Sequence[Violation]]) -> None:
    """Raises: GuardrailError with the first violations that `find` returns, by place, guardrail and the guardrail's reason; and,
    before `find` is asked, for a source that is empty, too long or no text."""
    fault = _no_text(source)
    if fault is not None:
        raise GuardrailError(fault)
    found = find()
    if not found:
        return
    reasons = {item.name: item.reason for item in guardrails}
    lines = [f"{item} ({reasons.get(item.guardrail, 'refused')})" for item in found[:_MOST_NAMED]]
    more = f"\n... and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    raise GuardrailError("\n".join(lines) + more)


def _no_text(source: str) -> str | None:
    if not source.strip():
        return "[text] the source is empty"
    if len(source) > MOST_CHARACTERS:
        return f"[text] the source has {len(source)} characters, at most {MOST_CHARACTERS} are read"
    odd = next((at for at, character in enumerate(source) if not character.isprintable() and character not in "\t\n\r"), None)
    if odd is None:
        return None
    line = source.count("\n", 0, odd) + 1
    return f"line {line}: [text] the source is no text: it holds the character {source[odd]!r}"
