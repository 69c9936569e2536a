"""The benchmark of the judge counts what it judged."""

from benchmarks import judge


def test_measure_counts_candidates_and_verdicts():
    found = judge.measure(1, 2, timed=False)
    assert found.candidates == 2 == len(found.first_s) + len(found.later_s)
    assert found.verdicts == {"passed": 2}
    assert found.a_minute > 0
