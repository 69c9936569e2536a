"""Intervals of medians, rounds as text, and what a comparison makes of records with and without them."""

from __future__ import annotations

import math
import random

import pytest

from kforge_dynamo.errors import RecordError
from kforge_dynamo.records.codec import digest, from_text, to_text
from kforge_dynamo.records.outcome import Measurement, Timings, compare
from kforge_dynamo.records.pairs import STRICT, lost, median_interval, numbers_of, numbers_text, won


@pytest.mark.parametrize(("count", "low", "high"), [(6, 1, 6), (15, 4, 12), (31, 10, 22), (100, 40, 61)])
def test_interval_of_a_median_has_the_ranks_of_the_sign_test(count, low, high):
    """Ranks of the 95 % interval: W. J. Conover, Practical Nonparametric Statistics, table of the binomial."""
    found = median_interval(random.Random(0).sample([float(n) for n in range(1, count + 1)], count))
    assert (found.low, found.high, found.pairs) == (low, high, count)


def test_interval_of_a_median_needs_six_values_and_ten_where_it_must_be_surer():
    assert median_interval([1.0] * 5) is None and median_interval([1.0] * 6) is not None
    assert median_interval([1.0] * 9, STRICT) is None and median_interval([1.0] * 10, STRICT) is not None


def test_interval_of_a_median_of_very_many_values_is_near_the_middle():
    found = median_interval([float(n) for n in range(2001)])
    assert 950 < found.low < 1000 < found.high < 1050


def test_interval_of_a_median_holds_the_true_one_for_a_skewed_distribution():
    draw = random.Random(1)
    missed = 0
    for _ in range(2000):
        found = median_interval([draw.lognormvariate(0.0, 1.0) for _ in range(21)])
        missed += not found.low <= 1.0 <= found.high
    assert missed / 2000 <= 0.05


@pytest.mark.parametrize("numbers", [(0,), (0, 1, 2), (3, 5, 6, 7, 11)])
def test_rounds_survive_their_text(numbers):
    assert numbers_of(numbers_text(numbers), len(numbers)) == numbers


@pytest.mark.parametrize("text", ["0-999999999999", "0-1", "2,1,0", "0,0,1", "a", "1-", "-1", "0-1,1", "3-2,4-5"])
def test_rounds_that_do_not_name_the_samples_are_refused(text):
    with pytest.raises(ValueError, match=r"round|invalid literal"):
        Measurement((1.0, 2.0, 3.0), "wall", text)


def test_measurement_of_an_older_store_keeps_its_text_and_digest_and_is_compared_by_medians():
    old = '{"method":"wall","samples_us":[{"f":"0x1.0000000000000p+0"},{"f":"0x1.8000000000000p+0"}]}'
    found = from_text(Measurement, old)
    assert to_text(found) == old and found.by_round == {} and digest(found) == digest(Measurement((1.0, 1.5), "wall"))
    share = compare(found, Measurement((2.5, 2.5), "wall"))
    assert (share.value, share.pairs) == (0.5, 0)


def test_measurement_with_rounds_survives_its_text_and_damaged_rounds_are_a_damaged_record():
    found = Measurement((1.0, 1.5), "wall", "0,2")
    assert from_text(Measurement, to_text(found)) == found and found.by_round == {0: 1.0, 2: 1.5}
    with pytest.raises(RecordError, match="rounds"):
        from_text(Measurement, to_text(found).replace("0,2", "0-5"))


def test_comparison_is_by_round_and_not_by_place():
    drift = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
    region = Measurement(tuple(drift[1:]), "wall", "1-7")
    candidate = Measurement(tuple(0.9 * value for value in drift[:7]), "wall", "0-6")
    found = compare(candidate, region)
    assert found.pairs == 6 and found.value == pytest.approx(0.9) and found.low == pytest.approx(0.9)
    assert Timings("wall", "default", candidate, region, None).speedup == pytest.approx(1 / 0.9)
    added = compare(candidate, region, added_us=1000.0)
    assert added.high < 0.9 * 64.0 / 1000.0


def test_comparison_of_too_few_common_rounds_is_that_of_medians():
    found = compare(Measurement((1.0,) * 6, "wall", "0-5"), Measurement((2.0,) * 6, "wall", "1-6"))
    assert (found.value, found.pairs) == (0.5, 0)


def test_gain_must_be_sure_and_one_percent():
    assert won(median_interval([0.97 + 0.001 * n for n in range(9)]))
    assert not won(median_interval([0.992] * 9)) and not lost(median_interval([0.9] * 9))
    wide = median_interval([math.exp(0.1 * n) for n in range(-6, 4)])
    assert not won(wide) and not lost(wide)
    assert lost(median_interval([1.0] * 9))
