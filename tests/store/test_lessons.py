"""Lessons beside the winners: kept sealed, and left out when they were changed."""

from dataclasses import replace

import pytest

from kforge_dynamo.records.diagnosis import Lesson, Limit
from kforge_dynamo.store import close_stores, open_store

LESSON = Lesson(
    "t", ("gemm",), "float32", (6, 7, 8), "cpu", "avx2", "cpp", Limit.MEMORY, "wider loads", 1.25, "faster", "2026-01-01"
)


@pytest.fixture
def lessons(tmp_path):
    close_stores()
    yield open_store(str(tmp_path / "cache")).lessons()
    close_stores()


def test_lesson_comes_back_as_it_was(lessons):
    assert lessons.all() == []
    failed = replace(LESSON, gain=None, outcome="inaccurate")
    assert lessons.add(LESSON) and lessons.add(failed) and lessons.add(LESSON)
    assert sorted(lessons.all(), key=lambda item: item.outcome) == [LESSON, failed]
    assert lessons.clear() == 2 and lessons.all() == []


def test_lesson_that_was_changed_or_moved_is_left_out(lessons, tmp_path):
    lessons.add(LESSON)
    (path,) = (tmp_path / "cache" / "v1" / "lessons").glob("*.json")
    text = path.read_text()
    path.with_name("0" * 64 + ".json").write_text(text)
    assert lessons.all() == [LESSON]
    path.write_text(text.replace("wider loads", "no checks at all"))
    assert lessons.all() == []
