"""A right winner that made its graph slower: dropped by one process, and not spliced by the next."""

import pytest
from runs import PLANTED, Caches

pytestmark = pytest.mark.slow

WARM = """
from kforge_dynamo import ledger
from kforge_dynamo.cli import whole_graph

def run(compiled, inputs):
    with torch.no_grad():
        compiled(*inputs)

model, x = Net(64).eval(), torch.randn(40, 64)
options = {"on_miss": "search"}
run(torch.compile(model, backend="kforge", options=options), [x])
reports = ledger.report()
# the graph without the first splice is fast, with all of them slow
timer = lambda calls: {name: [1.0 if label in ("none", reports[0].splice) else 2.0] * 20 for name in calls for label in [name]}
decision = whole_graph.decide(reports, whole_graph.builder(model, [x], options, run), timer)
whole_graph.keep(decision)
from kforge_dynamo import stats
left_out = [list(names) for names in decision.left_out.values()]
states = [item.state for item in reports]
print("RESULT " + json.dumps({"spliced": states, "left_out": left_out, "first": reports[0].splice, "stats": stats()}))
"""


def test_slow_but_verified_winner_is_left_out_by_later_processes(tmp_path):
    caches = Caches(tmp_path)
    warm = caches.run(WARM, PLANTED)
    assert set(warm["spliced"]) == {"winner"} and len(warm["spliced"]) > 1, "both regions were spliced at first"
    assert warm["left_out"] == [[warm["first"]]]
    elsewhere = {"TORCHINDUCTOR_CACHE_DIR": str(caches.home / "elsewhere")}  # in its own, Inductor has that very graph already
    later = caches.run('main(on_miss="fallback")', **elsewhere)
    assert later["error"] < 1e-5
    assert later["states"][0] == "no_winner" and "whole graph was slower" in later["reasons"][0]
    assert later["stats"]["spliced"] == len(warm["spliced"]) - 1
    cached = caches.run('main(on_miss="fallback")')
    assert cached["stats"]["spliced"] == later["stats"]["spliced"] and cached["error"] < 1e-5
