"""The six steps of a graph's epochs: a winner found later is used, and nothing else is compiled again."""

import pytest
from runs import PLANTED, Caches

pytestmark = pytest.mark.slow

OTHER = 'main(width=48, rows=24, on_miss="fallback")'  # no region of it is asked for at the sizes of the first
FALLBACK = 'main(on_miss="fallback")'


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """All processes of the story, in order."""
    caches = Caches(tmp_path_factory.mktemp("epochs"))
    other_cold = caches.run(OTHER)
    cold = caches.run(FALLBACK)
    elsewhere = {"TORCHINDUCTOR_CACHE_DIR": str(caches.home / "elsewhere")}  # as if another machine had warmed the cache
    warm = caches.run('main(on_miss="search")', PLANTED, **elsewhere)
    third = caches.run(FALLBACK)
    fourth = caches.run(FALLBACK)
    other_warm = caches.run(OTHER)
    evict = """
    from kforge_dynamo.settings import Settings
    from kforge_dynamo.store import open_store
    store = open_store(Settings.parse()[0].cache_dir)
    gone = store.evict("")
    print("RESULT " + json.dumps({"gone": gone}))
    """
    gone = caches.run(evict)
    again = caches.run('main(on_miss="search")', PLANTED)
    names = ("other_cold", "cold", "warm", "third", "fourth", "other_warm", "gone", "again")
    return dict(zip(names, (other_cold, cold, warm, third, fourth, other_warm, gone, again), strict=True))


def test_every_step_is_right(steps):
    assert all(step["error"] < 1e-5 for step in steps.values() if "error" in step)


def test_cold_process_with_fallback_splices_nothing_and_records_what_it_met(steps):
    assert steps["cold"]["stats"]["regions"] >= 2
    assert steps["cold"]["stats"]["spliced"] == 0
    assert set(steps["cold"]["states"]) == {"not_searched"}


def test_warming_process_keeps_winners(steps):
    assert steps["warm"]["stats"]["winners"] == 2, steps["warm"]["reasons"]


def test_third_process_compiles_again_and_calls_the_winners(steps):
    assert steps["third"]["stats"]["regions"] >= 2, "the graph's epoch must have changed"
    assert steps["third"]["stats"]["winners"] == steps["warm"]["stats"]["winners"]
    assert steps["third"]["stats"]["calls"] >= 1


def test_fourth_process_runs_no_pass_and_still_calls_the_winners(steps):
    assert steps["fourth"]["stats"]["regions"] == 0, "Inductor's cache must have been hit"
    assert steps["fourth"]["aot_hits"] + steps["fourth"]["fx_hits"] >= 1
    assert steps["fourth"]["stats"]["spliced"] == steps["third"]["stats"]["spliced"]
    assert steps["fourth"]["stats"]["calls"] == steps["third"]["stats"]["calls"]


def test_unrelated_model_hits_throughout(steps):
    assert steps["other_cold"]["stats"]["regions"] >= 2
    assert steps["other_warm"]["stats"]["regions"] == 0


def test_process_after_an_eviction_searches_again(steps):
    assert steps["gone"]["gone"] >= 1
    assert steps["again"]["stats"]["misses"] >= 1
    assert "searching kernels" in steps["again"]["stderr"]
    assert steps["again"]["stats"]["winners"] == 2
