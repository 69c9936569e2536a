"""A search may be killed at any moment, and two processes may search into one cache: what is on disk stays usable."""

import random
import signal
import time

import pytest
from runs import PLANTED, Caches, finish

pytestmark = pytest.mark.slow
SEARCH = 'main(on_miss="search", budget_s=60, region_budget_s=15)'
CHECK = """
from kforge_dynamo.settings import Settings
from kforge_dynamo.store import open_store
store = open_store(Settings.parse()[0].cache_dir)
problems = [entry.problem for _, entry in store.entries() if entry.problem]
print("RESULT " + json.dumps({"problems": problems, "health": store.health()}))
"""


def test_search_killed_at_random_moments_leaves_a_usable_cache(tmp_path):
    caches = Caches(tmp_path)
    moments = random.Random(7)
    for _ in range(3):
        process = caches.start(SEARCH)
        time.sleep(moments.uniform(3.0, 14.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        found = caches.run(CHECK)
        assert found["problems"] == []
        assert found["health"] is None
    last = caches.run('main(on_miss="search")', PLANTED)
    assert last["error"] < 1e-5
    assert last["stats"]["winners"] == 2, last["reasons"]


def test_two_processes_that_search_at_once_lose_nothing(tmp_path):
    caches = Caches(tmp_path)
    first, second = (caches.start('main(on_miss="search")', PLANTED) for _ in range(2))
    results = [finish(first), finish(second)]
    assert all(result["error"] < 1e-5 for result in results)
    found = caches.run(CHECK)
    assert found["problems"] == []
    later = caches.run('main(on_miss="fallback")')
    assert later["stats"]["spliced"] == 2
