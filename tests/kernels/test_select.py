"""sparsefl.kernels.select against a stable sort, on every variant."""

import pytest
import torch
from helpers import host, on, randn, random_bitmap, variants
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefl.kernels import bitmap, use_threads
from sparsefl.kernels.select import drop, grow, select


def chosen(variant, x, candidates, k, **how):
    with on(variant) as put:
        return bitmap.to_mask(select(put(x), put(candidates), torch.tensor(k), **how)).cpu()


@pytest.mark.parametrize("variant", variants("select"))
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("dense", [False, True])
def test_is_a_stable_sort(variant, largest, ties, dense):
    sizes = (1, 0, 64, 700, 1100)
    candidates = random_bitmap(sizes, 0.4, seed=3)
    x = randn(candidates.segments.numel if dense else candidates.nnz, 4)
    x = (x * 3).round() if ties else x
    if dense:
        x[~bitmap.to_mask(candidates)] = torch.nan  # not a candidate: must not be looked at
    k = (candidates.counts * torch.tensor([1, 0, 0, 0.3, 1])).long().tolist()  # all, none, none, some, all
    how = {"largest": largest, "dense": dense}
    found = chosen(variant, x, candidates, k, **how)
    assert torch.equal(found, chosen("reference", x, candidates, k, **how))
    assert [int(part.sum()) for part in found.split(sizes)] == k


@settings(max_examples=150, deadline=None)
@given(st.data(), st.booleans(), st.booleans())
def test_any_numbers_on_the_native_variants(data, largest, dense):
    sizes = data.draw(st.lists(st.integers(0, 200), min_size=1, max_size=3))
    candidates = random_bitmap(sizes, data.draw(st.floats(0, 1)), data.draw(st.integers(0, 999)))
    n = candidates.segments.numel if dense else candidates.nnz
    number = st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0, -1.0, float("inf")])
    x = torch.tensor(data.draw(st.lists(number, min_size=n, max_size=n)), dtype=torch.float32)
    k = [data.draw(st.integers(0, c)) for c in candidates.counts.tolist()]
    wanted = chosen("reference", x, candidates, k, largest=largest, dense=dense)
    for variant in variants("select", without=["reference", "triton"]):
        assert torch.equal(chosen(variant, x, candidates, k, largest=largest, dense=dense), wanted)


@pytest.mark.parametrize("variant", variants("select"))
@pytest.mark.parametrize("k", [0, 1, 99, 100])
def test_equal_numbers_are_taken_from_the_front(variant, k):
    found = chosen(variant, torch.full((100,), -2.5), bitmap.full((100,)), [k], largest=k % 2 == 0)
    assert found.tolist() == [True] * k + [False] * (100 - k)


@pytest.mark.parametrize("variant", variants("select"))
@pytest.mark.parametrize("largest", [False, True])
def test_nan_is_refused(variant, largest):
    x = randn(200)
    x[150] = -torch.nan
    with pytest.raises(ValueError, match="got NaN"):
        chosen(variant, x, bitmap.full((100, 100)), [3, 3], largest=largest)


def test_threads_do_not_change_the_choice():
    candidates, x = random_bitmap([200_000, 100_000, 7], 0.5), None
    x = randn(candidates.nnz).round(decimals=1)
    results = []
    for threads in (1, 2):
        with use_threads(threads):
            results.append(select(x, candidates, candidates.counts // 3).words)
    assert torch.equal(*results)


def test_bad_input_is_refused():
    candidates = random_bitmap([100], 0.5)
    n = candidates.nnz
    for k in ([-1], [n + 1], [1, 1]):
        with pytest.raises(ValueError, match="0 <= k <="):
            select(torch.ones(n), candidates, torch.tensor(k))
    with pytest.raises(ValueError, match="one a candidate"):
        select(torch.ones(n + 1), candidates, torch.tensor([1]))
    with pytest.raises(ValueError, match="one a dense entry"):
        select(torch.ones(n), candidates, torch.tensor([1]), dense=True)
    with pytest.raises(ValueError, match="dtype torch.int64"):
        select(torch.ones(n), candidates, torch.tensor([1.0]))


@pytest.mark.parametrize("variant", variants("select"))
def test_what_is_dropped_is_what_would_be_selected(variant):
    stored = random_bitmap((1, 0, 64, 700), 0.4, seed=3)
    x, k = randn(stored.nnz, 4), (stored.counts * 0.3).ceil().long()
    with on(variant) as put:
        left, chosen_ones = host((drop(put(x), put(stored), k), select(put(x), put(stored), k)))
    assert torch.equal(left.words, stored.words & ~chosen_ones.words)
    assert torch.equal(left.counts, stored.counts - k)


def grown(variant, kept, scores, k, threads=1):
    with on(variant) as put, use_threads(threads):
        words = put(torch.full_like(kept.words, 7))
        grow(put(kept), put(scores), torch.tensor(k), words)
        return words.cpu()


@pytest.mark.parametrize("variant", variants("select"))
@pytest.mark.parametrize("ties", [False, True])
def test_growth_selects_outside_what_is_kept(variant, ties):
    sizes = (1, 0, 64, 700, 1100)
    kept = random_bitmap(sizes, 0.4, seed=3)
    dense = randn(sum(sizes), 4)
    dense = (dense * 3).round() if ties else dense
    dense[bitmap.to_mask(kept)] = torch.nan  # not a candidate: must not be looked at
    k = ((torch.tensor(sizes) - kept.counts) * torch.tensor([1, 0, 0, 0.3, 1])).long().tolist()
    scores = dict(enumerate(dense.split(sizes)))
    chosen_by_select = select(dense, bitmap.complement(kept), torch.tensor(k), largest=True, dense=True)
    found = grown(variant, kept, scores, k, threads=2)
    assert torch.equal(found, kept.words | chosen_by_select.words)
    assert bitmap.make(found, sizes).counts.tolist() == (kept.counts + torch.tensor(k)).tolist()


@pytest.mark.parametrize("variant", variants("select"))
def test_growth_leaves_other_tensors_alone(variant):
    kept = random_bitmap((100, 200, 300), 0.5)
    words = grown(variant, kept, {1: randn(200)}, [0, 20, 0])
    lo, hi = kept.segments.starts[1:3].tolist()
    assert (words[:lo] == 7).all() and (words[hi:] == 7).all()
    assert bitmap.make(words[lo:hi].clone(), (200,)).nnz == int(kept.counts[1]) + 20


@pytest.mark.parametrize("variant", variants("select"))
def test_growth_refuses_what_has_no_order_or_no_place(variant):
    kept = random_bitmap((100,), 0.5)
    scores = randn(100)
    scores[~bitmap.to_mask(kept)] = torch.nan
    left = 100 - kept.nnz
    for numbers, k, message in [
        (scores, left - 1, "NaN"),
        (randn(100), left + 1, f"0 <= k <= {left} of tensor 0, got {left + 1}"),
        (randn(100), -1, "got -1"),
        (randn(99), 1, "100 scores"),
    ]:
        with pytest.raises(ValueError, match=message):
            grown(variant, kept, {0: numbers}, [k])
