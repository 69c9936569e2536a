"""Why there is no winner, in the fields that differ."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st
from store_records import KEY, domain, standing, winner

from kforge_dynamo.records.codec import digest
from kforge_dynamo.records.outcome import State
from kforge_dynamo.records.target import Numerics
from kforge_dynamo.store.explain import describe_numerics, show_domain


def test_miss_in_an_empty_store_says_so(store):
    assert store.explain_miss(KEY, (8,)).nearest is None
    assert "no winner" in str(store.explain_miss(KEY, (8,)))


def test_miss_by_sizes_names_the_ranges(store):
    store.put_winner(winner((1, 64), (8, 8)))
    miss = store.explain_miss(KEY, (100, 8))
    assert [item.field for item in miss.differences] == ["sizes"]
    assert "100x8" in str(miss) and "m=1..64 n=8" in str(miss)


def test_miss_by_device_names_both(store):
    store.put_winner(winner())
    miss = store.explain_miss(dataclasses.replace(KEY, device="Some CPU avx512 4 threads"), (8,))
    assert [item.field for item in miss.differences] == ["device"]
    assert "4 threads" in str(miss) and "2 threads" in str(miss)


def test_miss_by_numerics_names_the_flag_and_not_a_digest(store):
    high, highest = (digest(Numerics(name, False, True, False)) for name in ("high", "highest"))
    store.put_winner(winner(key=dataclasses.replace(KEY, numerics=high)))
    miss = store.explain_miss(dataclasses.replace(KEY, numerics=highest), (8,))
    assert [(item.field, item.asked, item.stored) for item in miss.differences] == [("numerics.fp32", "highest", "high")]


def test_miss_compares_with_the_entry_of_the_same_task_before_others(store):
    store.put_winner(winner(key=dataclasses.replace(KEY, task="c" * 64)))
    store.put_winner(winner(key=dataclasses.replace(KEY, device="elsewhere", numerics="n" * 64)))
    assert {item.field for item in store.explain_miss(KEY, (8,)).differences} == {"device", "numerics"}


def test_keys_with_nothing_but_standings_are_not_the_nearest(store):
    store.put_standing(standing(state=State.NOT_SEARCHED))
    store.put_winner(winner(key=dataclasses.replace(KEY, task="c" * 64)))
    assert store.explain_miss(KEY, (8,)).nearest.task == "c" * 64


def test_stored_winner_is_no_miss(store):
    store.put_winner(winner())
    assert store.explain_miss(KEY, (8,)).differences == ()


@given(st.sampled_from(["strict", "highest", "high", "medium", "mixed"]), st.booleans(), st.booleans(), st.booleans())
def test_numerics_are_told_from_their_digest(fp32, fp16, bf16, deterministic):
    words = describe_numerics(digest(Numerics(fp32, fp16, bf16, deterministic))).split()
    assert words[0] == fp32
    assert ("fp16_reduced" in words, "bf16_reduced" in words, "deterministic" in words) == (fp16, bf16, deterministic)


def test_unknown_numerics_are_shown_by_their_first_digits():
    assert describe_numerics("0123456789abcdef" * 4) == "0123456789ab"


def test_domain_is_shown_with_one_word_an_axis():
    assert show_domain(domain((1, 64), (8, 8))) == "m=1..64 n=8"
