"""The benchmark of the cache asks what it says it asks: every hit is one, every miss is one."""

from benchmarks import store
from kforge_dynamo.records.outcome import State
from kforge_dynamo.store import close_stores, open_store


def test_lookups_that_are_timed_are_hits_of_winners_of_now(tmp_path):
    close_stores()
    found = store.hits(tmp_path, 60)
    assert {"first lookup", "hit from disk", "hit again", "miss", "layer opened", "hit in a layer"} <= set(found)
    assert all(value["median_ms"] > 0.0 for value in found.values() if isinstance(value, dict))
    close_stores()
    place = open_store(str(tmp_path / "cache"))
    answers = [place.lookup(store.winner(number).key, (store.ROWS,), store.made_now) for number in range(60)]
    assert all(answer.state is State.WINNER and answer.winner == store.winner(n) for n, answer in enumerate(answers))
    assert len(answers[0].winner.trial.candidate.source) > store.SOURCE_BYTES
    close_stores()
