"""Winners on their way: warmed in one environment, used in another with the search switched off; wrong ones are not used."""

import dataclasses
import json
import pathlib

import pytest
from runs import PLANTED, Caches
from typer.testing import CliRunner

from kforge_dynamo.cli.main import app
from kforge_dynamo.records.codec import from_text
from kforge_dynamo.records.outcome import Winner
from kforge_dynamo.records.task import Task
from kforge_dynamo.store import close_stores, open_store
from kforge_dynamo.store.bundle import layer_files, write_zip
from kforge_dynamo.store.recorded import read

pytestmark = pytest.mark.slow

ZEROS = """#include <cstdint>
extern "C" __attribute__((visibility("default"))) void kforge_entry(
    void* const* inputs, void* const* outputs, void* const* buffers, const int64_t* sizes, const int64_t* strides, int threads) {
    for (int64_t place = 0; place < sizes[0] * 32; ++place) static_cast<float*>(outputs[0])[place] = 1.0f / 32;
}
"""
"""Of the right shape, sums to one like the softmax it replaces, and is wrong."""

TWICE = """
import contextlib, io
import kforge_dynamo
text = io.StringIO()
with contextlib.redirect_stdout(text):
    main(on_miss="fallback")
unseen = json.loads(text.getvalue().partition("RESULT ")[2])
assert unseen["stats"]["spliced"] == 1 and unseen["error"] > 1e-3, f"believed unseen, it runs: {unseen}"
torch.compiler.reset()
kforge_dynamo.reset()
main(on_miss="fallback", verify="on-load")
"""
"""The model with the layer believed unseen, then verified on load."""


def command(*words):
    close_stores()
    done = CliRunner().invoke(app, ["cache", *map(str, words)])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """One environment warms, records and exports; a fresh one imports and compiles without a search."""
    home = tmp_path_factory.mktemp("travel")
    (home / "first").mkdir()
    (home / "second").mkdir()
    first, second = Caches(home / "first"), Caches(home / "second")
    warm = first.run('main(on_miss="search")', PLANTED, KFORGE_RECORD=str(home / "regions.jsonl"), TORCH_LOGS="+kforge")
    key = command("keygen", home / "key", "--json")["public"]
    out = command("export", home / "winners.zip", "--sign", home / "key", "--json", "--cache-dir", home / "first" / "kforge")
    into = command("import", home / "winners.zip", "--trust", key, "--json", "--cache-dir", home / "second" / "kforge")
    fresh = second.run('main(on_miss="error")')
    return {"home": home, "warm": warm, "out": out, "in": into, "fresh": fresh}


def test_fresh_environment_hits_throughout_and_is_right(story):
    assert story["warm"]["stats"]["winners"] == story["out"]["winners"] == story["in"]["winners"] == 2
    stats = story["fresh"]["stats"]
    assert (stats["hits"], stats["misses"], stats["winners"], stats["spliced"]) == (2, 0, 2, 2)
    assert stats["calls"] == 2 and stats["fallback_calls"] == 0
    assert story["fresh"]["error"] < 1e-5


def test_regions_of_the_job_were_recorded_with_sizes_and_counts(story):
    regions, damaged = read(story["home"] / "regions.jsonl")
    assert damaged == 0 and [item.count for item in regions] == [1, 1]
    assert {item.assignment.sizes for item in regions} == {(40,)} and {item.regime for item in regions} == {"wall"}


def test_torch_logs_shows_regions_and_what_became_of_them(story):
    lines = [line for line in story["warm"]["stderr"].splitlines() if "graph_pass.py" in line]
    assert any("region 1: gemm" in line for line in lines) and any("winner, spliced" in line for line in lines)
    assert "kforge: searching" not in story["warm"]["stderr"], "a line has one writer"


def test_wrong_kernel_of_a_believed_layer_is_refused_on_load_and_never_runs(story, tmp_path):
    """The layer's owner is believed and mistaken, or worse: what does not pass here never runs in the model's process."""
    records = [entry.record for _, entry in open_store(str(story["home"] / "first" / "kforge")).entries()]
    wrong = [_wrong(item) for item in records if isinstance(item, Winner) and _width(item) == 32]
    assert len(wrong) == 1
    write_zip(tmp_path / "layer.zip", layer_files(wrong, "0.1.0", "", None))
    found = Caches(tmp_path).run(TWICE, KFORGE_CACHE_LAYERS=str(tmp_path / "layer.zip"), KFORGE_TRUST="digest")
    assert found["error"] < 1e-5 and found["stats"]["spliced"] == 0
    assert "is not used: it did not pass here: inaccurate" in found["stderr"]
    close_stores()
    mine = [entry.record for layer, entry in open_store(str(tmp_path / "kforge")).entries() if layer == "user"]
    assert not any(isinstance(item, Winner) for item in mine)


def _width(winner: Winner) -> int:
    return from_text(Task, winner.task).anchor.out.cols[-1]


def _wrong(winner: Winner) -> Winner:
    candidate = dataclasses.replace(winner.trial.candidate, source=ZEROS)
    return dataclasses.replace(winner, trial=dataclasses.replace(winner.trial, candidate=candidate))


def test_package_has_a_module_by_the_name_that_torch_logs_uses():
    import kforge
    import kforge_dynamo

    assert kforge.__all__ == kforge_dynamo.__all__ and pathlib.Path(kforge.__file__).name == "kforge.py"
