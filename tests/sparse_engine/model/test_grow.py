"""RigL: masks as the authors' code has them, and the number stored in a layer never moves."""

import math

import pytest
import torch
from helpers import host, on, randn, variants
from hypothesis import given, settings
from hypothesis import strategies as st

import sparse_engine as se
from sparse_engine.model.prune import without_smallest
from sparsefl.kernels.bitmap import from_mask, to_mask

NAMES = ["conv1.weight", "conv2.weight", "fc.weight"]


def random_grads(state, seed=0):
    shapes = zip(state.layout.names, state.layout.shapes, strict=True)
    return {name: randn(math.prod(s), seed + i).view(s) for i, (name, s) in enumerate(shapes)}


@pytest.mark.parametrize("variant", variants())
@pytest.mark.parametrize("t", [0, 250])
def test_masks_are_the_authors(golden, golden_state, variant, t):
    data = golden("rigl")
    alpha0, num_rounds = data["rigl_args"].tolist()
    fraction = se.rigl_fraction(t, int(num_rounds), alpha0)
    with on(variant) as put:
        state = golden_state(put(data), "toy_w_", "initmask_seed77_")
        n = [int(data[f"rigl_r{t}_num_{name}"]) for name in NAMES]
        assert [math.ceil(fraction * d) for d in state.bitmap.counts.tolist()] == n
        kept = without_smallest(state, torch.tensor(n))
        grown = se.rigl(state, put({name: data[f"rigl_score_{name}"] for name in NAMES}), fraction)
        kept, grown = host((kept, grown))
    thrown = torch.cat([data[f"rigl_r{t}_thrown_{name}"].view(-1) for name in NAMES])
    assert torch.equal(to_mask(kept), thrown)
    for name in NAMES:
        assert torch.equal(grown.pattern(name).mask(), data[f"rigl_r{t}_mask_{name}"])
        expected = data[f"toy_w_{name}"] * data[f"rigl_r{t}_thrown_{name}"]
        assert torch.equal(grown.tensor(name).to_dense(), expected)


def test_by_hand():
    # stored 4 -1 2 . . of five: drop the -1, grow the largest gradient outside 4 and 2
    layout = se.Layout(("w",), ((1, 5),))
    bitmap = from_mask(torch.tensor([1, 1, 1, 0, 0]).bool())
    empty = torch.empty(0)
    state = se.Model(layout, bitmap, torch.tensor([4.0, -1, 2]), empty, empty.long())

    def grown(*gradient):
        return se.rigl(state, {"w": torch.tensor([gradient])}, 0.3).tensor("w")

    fresh = grown(9.0, 1, 9, 0, -7)  # the sign does not count
    assert fresh.pattern.mask().tolist() == [[True, False, True, False, True]]
    assert fresh.values.tolist() == [4, 2, 0]
    again = grown(9.0, -8, 9, 0, -7)  # dropped and grown at once: stored, but its value is gone
    assert again.pattern.mask().tolist() == [[True, True, True, False, False]]
    assert again.values.tolist() == [4, 0, 2]
    assert grown(0.0, 0, 0, 0, 0).pattern.mask().tolist() == [
        [True, True, True, False, False]
    ]  # ties: the earliest
    assert state.values.tolist() == [4, -1, 2]


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 999), st.sampled_from(["gradient", "random"]))
def test_the_number_stored_stays(random_state, density, fraction, seed, grow):
    state = random_state(density=density, seed=seed)
    if grow == "gradient":
        new = se.rigl(state, random_grads(state, seed), fraction)
    else:
        new = se.rigl(state, None, fraction, grow="random", seed=seed)
    assert new.bitmap.counts.tolist() == state.bitmap.counts.tolist()
    for name in state.layout.names:
        old, w = state.tensor(name), new.tensor(name).to_dense()
        n = math.ceil(fraction * old.pattern.nnz)
        smallest_kept = old.values.abs().sort().values[n:][:1].tolist() or [math.inf]
        kept = old.pattern.mask() & (old.to_dense().abs() >= smallest_kept[0])
        assert (new.pattern(name).mask() | ~kept).all()
        assert torch.equal(w, old.to_dense() * kept)


def test_dense_layers_stay_dense_and_empty_ones_empty(random_state):
    for density in (0.0, 1.0):
        state = random_state(density=density)
        assert se.rigl(state, random_grads(state), 0.3).density == density
        assert se.rigl(state, None, 0.3, grow="random", seed=0).density == density


def test_fraction_zero_changes_nothing_and_one_follows_the_gradient_alone(random_state):
    state = random_state()
    grads = random_grads(state)
    assert torch.equal(se.rigl(state, grads, 0).values, state.values)
    new = se.rigl(state, grads, 1)
    assert not new.values.any()
    for name, g in grads.items():
        mask = new.pattern(name).mask()
        assert g[mask].abs().min() > g[~mask].abs().max()


def test_gradients_are_asked_for_once_in_order(random_state):
    state, asked = random_state(density=1.0), []
    grads = random_grads(state)

    def gradient(name):
        asked.append(name)
        return grads[name].clone().requires_grad_()

    new = se.rigl(state, gradient, 0.3)
    assert asked == list(state.layout.names)
    assert torch.equal(new.values, se.rigl(state, grads | {"b0": torch.zeros(2)}, 0.3).values)
    assert not new.values.requires_grad


def test_what_is_kept_never_looks_at_its_gradient(random_state):
    state = random_state()
    n = torch.tensor([math.ceil(0.3 * d) for d in state.bitmap.counts.tolist()])
    kept = se.masks(state.with_pattern(without_smallest(state, n)))
    grads = random_grads(state)
    expected = se.rigl(state, grads, 0.3)
    for name, g in grads.items():
        g[kept[name]] = math.nan
    assert torch.equal(se.rigl(state, grads, 0.3).bitmap.words, expected.bitmap.words)


def test_random_growth_is_seeded_and_uniform(random_state):
    state = random_state(shapes=((1, 12),), density=0.4, seed=3)
    grow = lambda seed: se.rigl(state, None, 0.5, grow="random", seed=seed)  # noqa: E731
    assert torch.equal(grow(1).bitmap.words, grow(1).bitmap.words)
    drawn = torch.stack([to_mask(grow(seed).bitmap) for seed in range(1500)]).double().mean(0)
    d = state.bitmap.nnz
    n = math.ceil(0.5 * d)
    share = n / (12 - d + n)
    inactive = drawn < 1
    assert int(inactive.sum()) == 12 - d + n
    assert (drawn[inactive] - share).abs().max() < 5 * math.sqrt(share * (1 - share) / 1500)


def test_the_cosine():
    assert se.rigl_fraction(0, 500) == 0.3
    assert se.rigl_fraction(250, 500, 0.5) == pytest.approx(0.25)
    assert se.rigl_fraction(500, 500) == 0
    assert se.rigl_fraction(125, 500, 0.4) == pytest.approx(0.2 * (1 + math.sqrt(0.5)))


@pytest.mark.parametrize(
    "arguments", [(-1, 10), (11, 10), (0, 0), (0, 10, -0.1), (0, 10, 1.1), (0, 10, math.nan)]
)
def test_refused_rounds(arguments):
    with pytest.raises(ValueError, match="expected"):
        se.rigl_fraction(*arguments)


def test_refusals(random_state):
    state = random_state()
    grads = random_grads(state)
    before = state.clone()
    for arguments, options, message in [
        ((grads, -0.1), {}, "fraction from 0 to 1, got -0.1"),
        ((grads, 1.1), {}, "fraction from 0 to 1, got 1.1"),
        ((grads, math.nan), {}, "fraction from 0 to 1, got nan"),
        ((grads, 0.3), {"grow": "momentum"}, "'gradient' or 'random', got 'momentum'"),
        ((None, 0.3), {}, "expected gradients to grow by, got None"),
        ((None, 0.3), {"grow": "random"}, "a seed and no gradients .* got seed=None, grads=NoneType"),
        ((grads, 0.3), {"grow": "random", "seed": 1}, "a seed and no gradients .* grads=dict"),
        (({"w0": grads["w0"]}, 0.3), {}, r"got none for \['w1', 'w2'\]"),
        (
            (grads | {"w1": torch.zeros(4, 27)}, 0.3),
            {},
            r"gradient of w1 as .*\(4, 3, 3, 3\).* got .*\(4, 27\)",
        ),
        (
            (grads | {"w1": grads["w1"].double()}, 0.3),
            {},
            "gradient of w1 as torch.float32 .* got torch.float64",
        ),
        ((grads | {"w1": grads["w1"] * math.nan}, 0.3), {}, "gradient of w1: expected numbers .* got NaN"),
    ]:
        with pytest.raises(ValueError, match=message):
            se.rigl(state, *arguments, **options)
    assert torch.equal(state.values, before.values) and torch.equal(state.bitmap.words, before.bitmap.words)


def test_layers_may_come_in_any_order(random_state):
    state = random_state()
    grads = random_grads(state)
    growth = se.Growth(state, 0.3)
    for name in reversed(state.layout.names):  # as backward brings them
        growth.add(name, grads[name])
    assert torch.equal(growth.bitmap().words, se.rigl(state, grads, 0.3).bitmap.words)


def test_all_layers_at_once_are_the_layers_one_by_one(random_state):
    state = random_state()
    grads = random_grads(state)
    at_once, one_by_one = se.Growth(state, 0.3), se.Growth(state, 0.3)
    at_once.add_all(grads)
    for name, gradient in grads.items():
        one_by_one.add(name, gradient)
    assert torch.equal(at_once.bitmap().words, one_by_one.bitmap().words)
    with pytest.raises(ValueError, match="again"):
        at_once.add_all(grads)


def test_a_second_gradient_replaces_the_first(random_state):
    state = random_state()
    first, second = random_grads(state), {name: -g.flip(0) for name, g in random_grads(state).items()}
    growth = se.Growth(state, 0.3)
    growth.add_all(first)
    for name, gradient in second.items():
        growth.add(name, gradient, again=True)
    assert torch.equal(growth.bitmap().words, se.rigl(state, second, 0.3).bitmap.words)


def test_every_layer_comes_once(random_state):
    state = random_state()
    first, *others = state.layout.names
    grads = random_grads(state)
    growth = se.Growth(state, 0.3)
    growth.add(first, grads[first])
    with pytest.raises(ValueError, match=f"got {first} again"):
        growth.add(first, grads[first])
    with pytest.raises(ValueError, match=f"got none of \\['{others[0]}'"):
        growth.bitmap()
    with pytest.raises(ValueError, match="out of"):
        growth.add("nobody", grads[first])
    with pytest.raises(ValueError, match=f"gradient of {others[0]}"):
        growth.add(others[0], grads[first])
