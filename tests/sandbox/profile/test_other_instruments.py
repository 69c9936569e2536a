"""torch's profiler, perf stat and pictures: recorded output, and the tools themselves where they run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from kforge_dynamo.errors import RecordError
from kforge_dynamo.sandbox.profile import perf, torch_profiler
from kforge_dynamo.sandbox.profile.instruments import INSTRUMENTS
from kforge_dynamo.sandbox.profile.pictures import MOST_BYTES, picture

FIXTURES = Path(__file__).parent / "fixtures"


def values(capture):
    return {(item.name, item.kernel): item.value for item in capture.metrics}


def test_trace_of_a_cpu_names_operators_the_longest_first():
    found = torch_profiler.parse((FIXTURES / "trace_cpu.json").read_text(), "test", 3)
    assert {"aten::mm", "aten::relu", torch_profiler.MARK} <= {item.kernel for item in found.metrics}
    assert [item.value for item in found.metrics] == sorted((item.value for item in found.metrics), reverse=True)
    assert found.spans == () and all(item.unit == "us" for item in found.metrics)


def test_trace_of_a_gpu_gives_kernels_and_their_gaps():
    events = [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 90.0, "dur": 4.0, "tid": 1},
        {"ph": "X", "cat": "kernel", "name": "product", "ts": 100.0, "dur": 50.0, "tid": 7, "args": {"stream": 7}},
        {"ph": "X", "cat": "kernel", "name": "reduce", "ts": 153.0, "dur": 7.0, "tid": 7, "args": {"stream": 7}},
        {"ph": "M", "name": "process_name"},
    ]
    found = torch_profiler.parse(json.dumps({"traceEvents": events}), "test", 1)
    got = values(found)
    assert got["duration", "product"] == 50.0 and got["gap between kernels, median", None] == 3.0
    assert got["device time a call", None] == 57.0 and got["host time", "cudaLaunchKernel"] == 4.0
    assert [span.lane for span in found.spans] == ["stream 7", "stream 7"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"traceEvents": []}', '{"traceEvents": [1, {"ph": "X"}]}', "3"])
def test_trace_without_events_is_a_note(text):
    found = torch_profiler.parse(text, "test")
    assert found.metrics == () and len(found.notes) == 1


def test_torch_s_profiler_runs_here():
    x = torch.randn(32, 32)
    found = torch_profiler.profile_calls(lambda: [torch.relu(x @ x)], "cpu")
    assert {"aten::mm", torch_profiler.MARK} <= {item.kernel for item in found.metrics}


def test_counters_that_a_machine_lacks_are_a_note():
    found = perf.parse((FIXTURES / "perf_virtual.csv").read_text(), "test", calls=2)
    got = {item.name: (item.value, item.unit) for item in found.metrics}
    assert got == {
        "task-clock": (0.26, "msec a call"),
        "page-faults": (23.5, "events a call"),
        "context-switches": (0.0, "events a call"),
    }
    assert "does not count cycles, instructions" in found.notes[0]


def test_instructions_a_cycle_follow_from_both_counters():
    text = "2000000,,cycles:u,5000,100.00,,\n5000000,,instructions:u,5000,100.00,2.50,insn per cycle\n<not counted>,,x,0,0,,\n"
    found = perf.parse(text, "test")
    got = {item.name: item.value for item in found.metrics}
    assert got["instructions a cycle"] == 2.5 and got["cycles"] == 2e6
    assert "x" in found.notes[0]
    assert "nothing that can be read" in perf.parse("perf: not found\n", "test").notes[0]


@pytest.mark.parametrize(
    ("data", "mime"),
    [
        (b"\x89PNG\r\n\x1a\n" + b"0" * 9, "image/png"),
        (b"\xff\xd8\xff\xe0" + b"0" * 9, "image/jpeg"),
        (b"GIF89a" + b"0" * 9, "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
    ],
)
def test_picture_s_kind_is_read_from_its_bytes(tmp_path, data, mime):
    path = tmp_path / "screen.txt"
    path.write_bytes(data)
    found = picture(path)
    assert (found.mime, found.file_bytes, found.sha256) == (mime, len(data), hashlib.sha256(data).hexdigest())
    assert Path(found.path).is_absolute()


def test_what_is_no_picture_is_refused_in_words(tmp_path):
    (tmp_path / "a.png").write_text("<svg/>")
    with pytest.raises(RecordError, match="expected PNG"):
        picture(tmp_path / "a.png")
    (tmp_path / "empty.png").write_bytes(b"")
    with pytest.raises(RecordError, match="empty file"):
        picture(tmp_path / "empty.png")
    with pytest.raises(RecordError, match="cannot be read"):
        picture(tmp_path / "absent.png")
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(RecordError, match="make it smaller"):
        picture(tmp_path / "large.png")


def test_instruments_have_names_of_their_own_and_say_what_they_are_for():
    assert len({item.name for item in INSTRUMENTS}) == len(INSTRUMENTS)
    assert all(item.tells and item.kinds and item.inside == (item.program is None) for item in INSTRUMENTS)
