"""Pages: complete by themselves, readable by a parser, and text stays text whatever it contains."""

from __future__ import annotations

import html.parser
import itertools
import json
import math
from pathlib import Path

import pytest

from kforge_dynamo.agents.transcript import Header, Recorded
from kforge_dynamo.errors import RecordError
from kforge_dynamo.pages.bench_page import bench_page, read_bench
from kforge_dynamo.pages.cache_page import cache_page
from kforge_dynamo.pages.elements import page, section, tag, visible
from kforge_dynamo.pages.kernels import difference, placed, source_block
from kforge_dynamo.pages.plots import Point, roofline, trajectory
from kforge_dynamo.pages.run_page import run_page
from kforge_dynamo.peaks import gpu_peaks
from kforge_dynamo.records.assignment import Assignment
from kforge_dynamo.records.candidate import Candidate, Launch, LaunchPlan
from kforge_dynamo.records.codec import digest, plain, to_text
from kforge_dynamo.records.outcome import (
    CacheKey,
    Measurement,
    Provenance,
    Standing,
    State,
    Status,
    Terms,
    Timings,
    Trial,
    Verdict,
    Winner,
)
from kforge_dynamo.records.spending import Budget, Spent
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import AxisRange, Domain, InputRole, InputSpec, Node, Task, ValueSpec
from kforge_dynamo.store import Entry

EVIL = "</style></title><script>alert(1)</script><img src=http://x/y onerror=alert(2)>\u202e\x00\ud800 ' \" &amp; ]]>"
DEVICE = "NVIDIA H200"
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Structure(html.parser.HTMLParser):
    """Tags with their attributes, texts by tag, and whether every tag was closed."""

    def __init__(self, data: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(data.decode("utf-8"))
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, name, attributes):
        self.tags.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def safe(data: bytes) -> Structure:
    """The page's structure, after looking that it can neither load nor run anything."""
    found = Structure(data)
    names = {name for name, _ in found.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "embed", "form", "base", "a", "use", "image"}
    for name, attributes in found.tags:
        assert not [key for key in attributes if key.startswith("on") or key in ("href", "src", "style", "xlink:href")], name
    policies = [a["content"] for n, a in found.tags if n == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policies and policies[0].startswith("default-src 'none'")
    style = data.split(b"<style>")[1].split(b"</style>")[0]
    assert b"url(" not in style and b"@import" not in style
    return found


def task() -> Task:
    lhs, rhs = ValueSpec("float32", ("m",), (1024,)), ValueSpec("float32", (1,), (1024, 512))
    out = ValueSpec("float32", ("m",), (512,))
    nodes = (Node("gemm", (0, 1), (("alpha", 1.0), ("beta", 1.0)), out), Node("relu", (2,), (), out))
    inputs = (InputSpec(lhs, ("dense", 1), InputRole.LHS), InputSpec(rhs, (0, "dense", 1), InputRole.RHS))
    return Task(("m",), (), inputs, nodes, (3,))


def candidate(source: str, author: str = "builtin", parent: str | None = None) -> Candidate:
    return Candidate("cpp", source, LaunchPlan((), (Launch("kforge_entry", ("1",), ("in:0",)),)), "{}", "ieee", author, parent)


def trial(kernel: Candidate, kernel_us: float = 10.0, region_us: float = 25.0, where: str = "output 0") -> Trial:
    times = Timings("wall", "default", Measurement((kernel_us,), "wall"), Measurement((region_us,), "wall"), None)
    return Trial(kernel, Verdict(Status.PASSED, 1.25, 1e-7, where, ""), (times,))


def entries(words: str, low: int = 64) -> list[tuple[str, Entry]]:
    """A winner, a "no winner" and a refused entry, with `words` wherever a text comes from outside."""
    key = CacheKey("a" * 64, DEVICE, "b" * 64, 1)
    domain = Domain((AxisRange("m", low, 64),))
    made = Provenance(words, "cpp", words, words, "0.1.0", words)
    winner = Winner(key, to_text(task()), domain, trial(candidate(words, words), where=words), made)
    standing = Standing(key, domain, State.NO_WINNER, f"slower: {words}", Terms(words, ("cpp",), 10.0, 12), 0.875)
    foreign = CacheKey("c" * 64, words, words, 1)
    return [
        ("user", Entry("1" * 64, "winner", key, domain, winner, None)),
        (words, Entry("2" * 64, "standing", key, domain, standing, None)),
        (words, Entry("3" * 64, "winner", foreign, domain, None, f"does not fit its tag {words}")),
    ]


def test_hostile_text_in_a_page_stays_text_and_is_seen():
    found = safe(page(EVIL, section(EVIL, tag("p", EVIL, title=EVIL))))
    assert found.text.count("<script>alert(1)</script>") == 4  # the title, two headings, the paragraph
    assert "\\u202e\\u0000\\ud800" in found.text


def test_characters_that_hide_or_reorder_others_become_escapes():
    assert visible("a\u202eb\u200bc\x1b[31m\ud800") == "a\\u202eb\\u200bc\\u001b[31m\\ud800"
    assert visible("ünïcode 漢字\n\ttab") == "ünïcode 漢字\n\ttab"


def test_cache_page_with_hostile_entries_is_safe_and_shows_all_of_them():
    found = safe(cache_page(entries(EVIL), EVIL))
    assert "does not fit its tag </style>" in found.text and "slower: </style>" in found.text
    assert found.text.count("alert(1)") > 8


def test_cache_page_shows_winner_loser_and_refused_with_their_numbers():
    found = safe(cache_page(entries("words"), "kforge"))
    for words in ("2.50x", "0.88x", "10.0", "25.0", "1.25", "no_winner", "12 kernels of words", "NVIDIA H200", "torch words"):
        assert words in found.text, words
    classes = [a["class"] for n, a in found.tags if n == "circle"]
    assert sorted(classes) == ["base", "point"]
    expected = placed(task(), (64,), gpu_peaks(DEVICE)).share(10.0)
    assert expected is not None and f"{expected:.0%}" in found.texts


def test_winner_of_a_range_of_sizes_gets_no_place_on_the_roofline():
    found = safe(cache_page(entries("words", low=1), "kforge"))
    assert not [n for n, _ in found.tags if n == "circle"] and "2.50x" in found.text


def test_winner_whose_task_cannot_be_read_is_listed_without_a_roofline():
    layer, entry = entries("words")[0]
    winner = entry.record
    strange = Winner(winner.key, "{}", winner.domain, winner.trial, winner.provenance)
    found = safe(cache_page([(layer, Entry(entry.digest, "winner", entry.key, entry.domain, strange, None))], "kforge"))
    assert "2.50x" in found.text and not [n for n, _ in found.tags if n == "circle"]


def test_empty_cache_makes_a_page():
    assert "winners" in safe(cache_page([], "kforge")).text


def test_placed_task_counts_operations_bytes_and_the_ceilings_time():
    place = placed(task(), (64,), gpu_peaks(DEVICE))
    moved = 4 * (64 * 1024 + 1024 * 512 + 64 * 512)
    assert (place.flops, place.moved_bytes) == (2 * 64 * 1024 * 512, moved)
    assert place.floor_us == pytest.approx(max(place.flops / 989.5e12, moved / 4800e9) * 1e6)
    assert place.share(2 * place.floor_us) == pytest.approx(0.5)
    assert placed(task(), (64,), ()).share(1.0) is None


def circles(picture):
    return [(float(item.get("cx")), float(item.get("cy"))) for item in picture.iter("circle")]


def test_roofline_places_kernels_below_the_roof_and_the_faster_higher():
    peaks = gpu_peaks(DEVICE)
    picture = roofline([Point(100.0, 1e12, "point", "slow"), Point(100.0, 1e14, "point", "fast")], peaks)
    (x0, slow), (x1, fast) = circles(picture)
    roofs = [
        float(line.get("y1")) for line in picture.iter("line") if line.get("class") == "roof" and line.get("y1") == line.get("y2")
    ]
    assert x0 == x1 and fast < slow and len(roofs) == 3 and min(roofs) < fast
    assert all(0 <= x <= 640 and 0 <= y <= 340 for x, y in circles(picture))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_roofline_leaves_out_what_has_no_place(bad):
    assert roofline([Point(bad, 1e12, "point", ""), Point(1.0, bad, "point", "")], gpu_peaks(DEVICE)) is None
    assert len(circles(roofline([Point(bad, 1.0, "point", ""), Point(1.0, 1.0, "point", "")], ()))) == 1


def test_trajectory_never_rises_and_ends_at_the_best():
    picture = trajectory([(1.0, 30.0), (2.0, 20.0), (3.0, 25.0), (4.0, 10.0)], "s", 22.0)
    line = next(picture.iter("polyline")).get("points")
    levels = [float(pair.split(",")[1]) for pair in line.split()]
    assert levels == sorted(levels) and levels[-1] == max(y for _, y in circles(picture))
    assert trajectory([], "s", 1.0) is None and trajectory([(0.0, 5.0)], "USD", None) is not None


def test_source_block_keeps_every_letter_and_marks_keywords():
    source = "// a <b> & 'c'\nfor (int i = 0; i < 8; ++i) { x += \"s\"; }\n\n"
    block = source_block(source, "cpp")
    assert "".join(block.itertext()) == source
    assert {item.get("class") for item in block.iter("span")} >= {"c", "k", "s", "m"}
    assert "".join(source_block("no such <language>", "klingon").itertext()) == "no such <language>"


def test_difference_marks_what_came_and_went():
    block = difference("a\nb\nc\n", "a\nB\nc\n")
    marked = {(item.text.strip(), item.get("class")) for item in block.iter("span")}
    assert {("-b", "bad"), ("+B", "good")} <= marked
    assert "equal" in "".join(difference("a", "a").itertext())


def run(words: str) -> Recorded:
    """Two steps: a kernel, its faster child, one that was wrong."""
    first = candidate(f"int a; // {words}", words)
    second = candidate(f"int b; // {words}", words, digest(first))
    wrong = Trial(candidate("int c;", words), Verdict(Status.INACCURATE, 7.5, 1e-7, words, f"off by {words}"), ())
    trials = [(0, trial(first, 30.0)), (1, trial(second, 10.0)), (1, wrong)]
    numbers = itertools.count()
    stamps = (f"2026-01-01T00:00:{second:02d}.000+00:00" for second in range(60))
    events = []
    for step, item in trials:
        events.append(
            {"event": "spent", "step": step, "at": next(stamps), "spent": plain(Spent(1.0, 10, 0.25 * (step + 1), 1, 1))}
        )
        event = {
            "event": "trial",
            "step": step,
            "at": next(stamps),
            "index": next(numbers),
            "stage": "search",
            "trial": plain(item),
        }
        events.append(event)
    return Recorded(header(words), events)


def header(words: str) -> Header:
    where = Target("cuda", "nvidia", DEVICE, "sm_90", 132, None, None, (), gpu_peaks(DEVICE))
    asked = Assignment(words, "cuda", task(), (64,), Domain((AxisRange("m", 64, 64),)), Numerics("highest", False, False, False))
    return Header(asked, where, words, "", "{}", Budget(60.0), ("cpp",), 1, 1, None, (), "", "", "2026-01-01T00:00:00.000+00:00")


def test_run_page_shows_every_kernel_its_change_and_the_course():
    found = safe(run_page(run("words")))
    names = [n for n, _ in found.tags]
    assert names.count("polyline") == 2, "over time and over money"
    for words in (
        "inaccurate",
        "7.50",
        "off by words",
        "2.50x",
        "-int a; // words",
        "+int b; // words",
        "3, of which 2 were right",
    ):
        assert words in found.text, words


def test_run_page_with_hostile_text_is_safe():
    found = safe(run_page(run(EVIL)))
    assert "off by </style></title><script>" in found.text


def test_run_page_of_a_run_that_was_killed_at_once():
    assert "not ended" in safe(run_page(Recorded(header("words"), []))).text


@pytest.mark.parametrize("change", [{"trial": {}}, {"trial": None}, {"index": "x"}])
def test_damaged_event_of_a_run_is_one_sentence(change):
    recorded = run("words")
    recorded.events[1] |= change
    with pytest.raises(RecordError):
        run_page(recorded)


def bench_line(**changes) -> str:
    ratio = {"against": "eager", "value": 1.5, "low": 1.4, "high": 1.6}
    region = {"title": "gemm", "state": "winner", "scheme": "ieee", "reason": "", "speedup": 1.5, "error_ratio": 1.0}
    row = {
        "row": {"id": 12, "precision": "fp32", "scale": "cpu", "mode": "eval"},
        "name": "Gemm",
        "device": "Some CPU",
        "versions": {"torch": "2.13"},
        "failure": None,
        "failed": {},
        "kforge": {"stats": {"spliced": 1}, "regions": [region]},
        "wall_us": {"eager": {"median": 300.0}, "kforge": {"median": 200.0}},
        "wall_ratio": ratio,
        "device_us": None,
        "device_ratio": None,
        "error": {"ratio": 1.25, "right": True},
    }
    return json.dumps(row | changes)


def test_bench_page_tells_wins_losses_left_out_wrong_and_failed(tmp_path):
    lost = {"against": "eager", "value": 0.8, "low": 0.7, "high": 0.9}
    lines = [
        bench_line(),
        bench_line(row={"id": 13, "precision": "fp32", "scale": "cpu", "mode": "eval"}, wall_ratio=lost),
        bench_line(row={"id": 14, "precision": "fp32", "scale": "cpu", "mode": "eval"}, error={"ratio": 9.0, "right": False}),
        bench_line(
            row={"id": 15, "precision": "fp32", "scale": "cpu", "mode": "eval"},
            kforge={"stats": {"spliced": 0}, "regions": [{"state": "no_winner", "reason": EVIL}]},
        ),
        bench_line(row={"id": 16, "precision": "fp32", "scale": "cpu", "mode": "eval"}, failure=f"lost {EVIL}", wall_us=None),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*lines, "{", "[]", '{"row": {}}']) + "\n")
    rows, damaged = read_bench(path)
    assert damaged == 3
    assert [row.verdict for row in rows] == ["win", "loss", "wrong", "left to Inductor", "not measured"]
    found = safe(bench_page(rows, EVIL))
    for words in ("1, 1, 1", "no_winner: </style>", "failed: lost </style>", "1.40 to 1.60"):
        assert words in found.text, words


def test_own_results_make_a_page():
    for path in sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("*.jsonl")):
        rows, damaged = read_bench(path)
        assert rows and damaged <= 1, path
        assert safe(bench_page(rows, path.name)).text.count("geometric mean") >= 1


@pytest.mark.parametrize(("content", "words"), [(None, "cannot be read"), ("", "no row"), ("{}\n", "no row")])
def test_bench_file_without_rows_is_one_sentence(tmp_path, content, words):
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RecordError, match=words):
        read_bench(path)
