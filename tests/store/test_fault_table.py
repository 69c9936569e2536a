"""The fault table of docs/cache.md is made of tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_fault_of_the_table_has_its_test_and_every_link_its_file():
    text = (ROOT / "docs" / "cache.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| .* \| `(test_\w+)` \|$", text, re.M)
    there = {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert len(named) == len(set(named)) >= 15 and set(named) <= there, set(named) - there
    for page in ("cache.md", "trust.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "docs" / page).read_text(encoding="utf-8")):
            assert (ROOT / "docs" / link).exists(), link
