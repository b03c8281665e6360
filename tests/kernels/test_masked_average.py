"""sparsefl.kernels.masked_average against float64, on every variant and over every regime of density."""

import pytest
import torch
from helpers import assert_close, on, randn, random_bitmap, variants
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefl.kernels import bitmap, use_backend, use_threads
from sparsefl.kernels.layout import Packed
from sparsefl.kernels.masked_average import masked_average, mean


def models(sizes, densities, seed=0):
    found = []
    for j, density in enumerate(densities):
        support = random_bitmap(sizes, density, seed + j)
        found.append(Packed(support, randn(support.nnz, seed + 100 + j)))
    return found


def expected(mask, given):
    with use_backend("reference"):
        return masked_average(mask, [Packed(m.bitmap, m.values.double()) for m in given])


@pytest.mark.parametrize("variant", variants("masked_average"))
@pytest.mark.parametrize("sizes", [(1,), (63,), (64, 0, 65), (1023, 1, 700)])
@pytest.mark.parametrize("density", [0.0, 0.05, 0.15, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 2, 11])
def test_matches_float64(variant, sizes, density, count):
    mask = random_bitmap(sizes, density, seed=77)
    given = models(sizes, [density] * count)
    with on(variant) as put:
        found = masked_average(put(mask), put(given)).cpu()
    assert_close(found, expected(mask, given), terms=count)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=4),
    st.floats(0, 1),
    st.lists(st.floats(0, 1), min_size=1, max_size=20),
    st.integers(0, 10**6),
)
def test_any_mix_of_patterns_on_the_native_variants(sizes, density, densities, seed):
    mask, given = random_bitmap(sizes, density, seed + 50), models(sizes, densities, seed)
    wanted = expected(mask, given)
    for variant in variants("masked_average", without=["reference", "triton"]):
        with use_backend(variant):
            assert_close(masked_average(mask, given), wanted, terms=len(given))


@pytest.mark.parametrize("variant", variants("masked_average"))
def test_worked_by_hand(variant):
    rows = {"own": [1.0, 2.0, None, None], "left": [3.0, None, None, 0.0], "right": [8.0, 4.0, None, None]}
    given = []
    for row in rows.values():
        support = bitmap.from_mask(torch.tensor([x is not None for x in row]))
        given.append(Packed(support, torch.tensor([x for x in row if x is not None])))
    with on(variant) as put:
        given = put(given)
        everywhere = masked_average(bitmap.full((4,), put.device), given)
        on_own = masked_average(given[0].bitmap, given)
        alone = masked_average(bitmap.full((4,), put.device), given[:1])
    assert everywhere.tolist() == [4.0, 3.0, 0.0, 0.0]  # 12/3, 6/2, nobody, a stored zero
    assert on_own.tolist() == [4.0, 3.0]
    assert alone.tolist() == [1.0, 2.0, 0.0, 0.0]


def test_more_than_fifteen_models_and_threads():
    sizes = [9000, 64 * 5000]  # several chunks
    given, mask = models(sizes, [0.02, 0.2, 0.6] * 6), random_bitmap(sizes, 0.3, 5)
    with use_backend("reference"):
        wanted = masked_average(mask, given)
    results = []
    for threads in (1, 2, 3):
        with use_threads(threads):
            results.append(masked_average(mask, given))
    assert_close(results[0], wanted, terms=len(given))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_bad_input_is_refused():
    own, other = models([100], [0.5])[0], models([64, 36], [0.5])[0]
    with pytest.raises(ValueError, match="1 to 4095 models, got 0"):
        masked_average(own.bitmap, [])
    with pytest.raises(ValueError, match="models of one shape"):
        masked_average(own.bitmap, [own, other])
    with pytest.raises(ValueError, match="values of models\\[0\\]"):
        masked_average(own.bitmap, [Packed(own.bitmap, own.values[:-1])])
    with pytest.raises(ValueError, match="expected one dtype"):
        masked_average(own.bitmap, [own, Packed(own.bitmap, own.values.double())])
    with pytest.raises(ValueError, match="out of its own"):
        masked_average(own.bitmap, [own], out=own.values)


@pytest.mark.parametrize("variant", variants("masked_average"))
@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 1023, (1 << 14) + 3, 1 << 15])
@pytest.mark.parametrize("count", [1, 2, 11])
def test_plain_mean(variant, n, count):
    given = [randn(n, seed=j) for j in range(count)]
    wanted = sum(x.double() for x in given) / count
    with on(variant) as put:
        given = put(given)
        found = mean(given).cpu()
        assert_close(found, wanted, terms=count)
        with use_threads(3):
            assert torch.equal(mean(given).cpu(), found)


@pytest.mark.parametrize("variant", variants("masked_average", without=["reference"]))
def test_plain_mean_has_the_bits_of_torch(variant):
    given = [randn(999, seed=j) for j in range(7)]
    wanted = given[0].clone()
    for x in given[1:]:
        wanted += x
    with on(variant) as put:
        assert torch.equal(mean(put(given)).cpu(), wanted / 7)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ([], "at least one tensor"),
        ([torch.zeros(3), torch.zeros(4)], "one shape"),
        ([torch.zeros(3), torch.zeros(3).double()], "one dtype"),
        ([torch.zeros(3, 1)], "1-D"),
        ([torch.zeros(6)[::2]], "contiguous"),
        ([torch.zeros(3, dtype=torch.int64)], "dtype"),
    ],
)
def test_plain_mean_refuses(given, match):
    with pytest.raises(ValueError, match=match):
        mean(given)
