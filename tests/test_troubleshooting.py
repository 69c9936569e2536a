"""The troubleshooting page quotes messages that kforge can really say, and links lead somewhere."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
WORDS = re.findall(r"^\| `([^`]+)` \|", PAGE, re.M)


@functools.cache
def said() -> str:
    """Every text constant of the package, parts of f-strings among them."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "kforge_dynamo").rglob("*.py")]
    nodes = (node for tree in trees for node in ast.walk(tree))
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_page_has_rows():
    assert len(WORDS) > 8


@pytest.mark.parametrize("words", WORDS)
def test_quoted_message_is_one_that_kforge_says(words):
    assert words in said()


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_links_of_the_docs_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (path.parent / target).exists(), target
