"""The native session against the reference in float64: training, gradients, tests and growth."""

import numpy as np
import pytest
import torch
from programs import MODELS, ODD, batches, forced, made, samples, seeds
from torch import nn

import sparse_engine as se
from sparse_engine.program.batches import Batches, Data, Moves, Training
from sparse_engine.program.cpu import session as sessions
from sparse_engine.program.cpu.convs import Kernels
from sparse_engine.program.cpu.session import Session
from sparse_engine.program.reference import Reference
from sparse_engine.program.steps import Conv
from sparsefl.kernels import native
from sparsefl.kernels.bitmap import from_mask, to_mask
from sparsefl.kernels.sparse_conv import candidates, split

ISAS = native.isas() if native.built() else []
pytestmark = pytest.mark.skipif(not native.built(), reason="the native kernels are not built")
UNIT = torch.finfo(torch.float32).eps
LARGE = ("vgg11", "alexnet", "resnet18", "resnet18, batch norm")
NORMED = ("batch norm", "vectors", "resnet18, batch norm")  # a norm of batches of vectors: no batch of 1


@pytest.fixture(autouse=True, scope="module")
def one_thread_of_torch():
    """The reference is small work: threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_near(ours, theirs, start=None, steps=1, rtol=1e-5):
    """Within `rtol` of the largest change. A weight that is far larger than its change rounds it away: half a
    unit of the weight per step."""
    for part in ("values", "rest"):
        a, b = (getattr(model, part).double() for model in (ours, theirs))
        if not a.numel():
            continue
        before = torch.zeros_like(a) if start is None else getattr(start, part).double()
        allowed = rtol * (b - before).abs().max() + steps * UNIT * before.abs().max()
        off = (a - b).abs().max()
        assert off <= allowed, f"{part} off by {off:.3g}, allowed {allowed:.3g}"
    assert torch.equal(ours.integers, theirs.integers)


def assert_same(a, b):
    for part in ("values", "rest", "integers"):
        assert torch.equal(getattr(a, part), getattr(b, part)), part


def both(graph, model, given, how):
    """What the native session and the reference make of a model."""
    found = []
    for run in (Session(graph), Reference(graph)):
        mine = model.clone()
        found.append((mine, run.train(mine, given, how)))
    (ours, done), (theirs, wanted) = found
    assert done.samples == wanted.samples and done.failed is None and not done.stopped
    assert done.loss == pytest.approx(wanted.loss, rel=1e-5)
    return ours, theirs


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ODD)
def test_a_step_is_the_reference_s(name, isa):
    graph, model = made(name)
    with se.use_isa(isa):
        ours, theirs = both(
            graph, model, batches(samples(graph, 20), 20), Training(lr=0.5, seeds=seeds(graph))
        )
    assert_near(ours, theirs, model)


@pytest.mark.parametrize(("size", "n"), [(16, 48), (130, 130), (32, 50), (16, 33), (2, 5), (1, 1), (200, 3)])
@pytest.mark.parametrize("name", ODD)
def test_batches_of_any_size_and_their_tails(name, size, n):
    if name in NORMED and 1 in (size, n % size):
        pytest.skip("batch norm of one value")
    graph, model = made(name)
    given = batches(samples(graph, n), size)
    ours, theirs = both(graph, model, given, Training(lr=0.05, seeds=seeds(graph)))
    assert_near(ours, theirs, model, steps=-(-n // size), rtol=2e-5)  # later steps start where rounding led
    assert Session(graph).evaluate(theirs, given) == Reference(graph).evaluate(theirs, given)


@pytest.mark.parametrize("name", MODELS)
def test_networks_of_ours(name):
    """On other samples rounding may decide a ReLU or a maximum: few samples, for which it does not."""
    graph, model = made(name, density=0.2)
    data = samples(graph, 5 if name in LARGE else 50)
    given = batches(data, 16)
    ours, done = Session(graph).gradient(model, given, seeds(graph))
    theirs, wanted = Reference(graph).gradient(model, given, seeds(graph))
    assert done.loss == pytest.approx(wanted.loss, rel=1e-5)
    assert_near(ours, theirs)
    if name not in LARGE:
        trained = both(graph, model, batches(data, 16), Training(lr=0.05, seeds=seeds(graph)))
        assert_near(*trained, model, steps=4, rtol=3e-5)
        assert Session(graph).evaluate(model, given) == Reference(graph).evaluate(model, given)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kernel", ["sparse", "dense", "winograd"])
@pytest.mark.parametrize("name", ["strides", "dilation", "winograd", "shared gradients", "vectors"])
def test_every_kernel(name, kernel, isa, monkeypatch):
    monkeypatch.setattr(sessions, "choose", forced(kernel))
    for density in (0.3, 1):
        graph, model = made(name, density)
        for size in (9, 130):
            given = batches(samples(graph, size), size)
            with se.use_isa(isa):
                ours, _ = Session(graph).gradient(model, given, seeds(graph))
            assert_near(ours, Reference(graph).gradient(model, given, seeds(graph))[0])


@pytest.mark.skipif("avx512" not in ISAS, reason="needs AVX-512 beside AVX2")
@pytest.mark.parametrize("name", ["strides", "winograd", "shared gradients", "vectors", "dropouts"])
def test_steps_on_instruction_sets_of_their_own(name, monkeypatch):
    """Neighbours on different ones: each step has planes and orders for its own."""
    draw, seen = np.random.default_rng(0), set()

    def mixed(graph, counts, lanes, bf16):
        found = []
        for step in graph.steps:
            if isinstance(step, Conv):
                every = candidates(step.geometry, native=True)
                growth = [k for k in every if not k.startswith("sparse")]
                found.append(Kernels(*draw.choice(every, 3), draw.choice(growth)))
        return tuple(found)

    monkeypatch.setattr(sessions, "choose", mixed)
    for _ in range(4):
        for density in (0.3, 1):
            graph, model = made(name, density)
            given = batches(samples(graph, 9), 9)
            with se.use_isa("avx512"):
                session = Session(graph)
                ours, _ = session.gradient(model, given, seeds(graph))
                seen |= {split(k)[1] for each in session.program(model.bitmap, 9).kernels for k in each}
            assert_near(ours, Reference(graph).gradient(model, given, seeds(graph))[0])
    assert seen == {"", "avx2"}


WAYS = {
    "momentum": {"momentum": 0.9},
    "weight decay": {"weight_decay": 0.1},
    "clipped": {"max_norm": 0.05},
    "not clipped": {"max_norm": 1e3},
    "uphill": {"rho": 0.3},
    "all of it": {"momentum": 0.8, "weight_decay": 0.01, "max_norm": 0.2, "rho": 0.1},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["batch norm", "dropouts", "group norms"])
def test_ways_to_step(name, way):
    graph, model = made(name)
    given = batches(samples(graph, 24), 10, epochs=2)
    how = Training(lr=0.05, seeds=seeds(graph), first_pass=3, **WAYS[way])
    ours, theirs = both(graph, model, given, how)
    assert_near(ours, theirs, model, steps=6, rtol=3e-5)
    plain, _ = both(graph, model, given, Training(lr=0.05, seeds=seeds(graph), first_pass=3))
    assert torch.equal(plain.values, ours.values) == (way == "not clipped")


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_pull_goes_towards_the_model_it_names(momentum):
    graph, model = made("batch norm")
    towards = model.with_values(model.values + 0.3)
    given = batches(samples(graph, 24), 10)
    how = Training(lr=0.05, momentum=momentum, pull=(towards, 0.4), max_norm=1.0)
    ours, theirs = both(graph, model, given, how)
    assert_near(ours, theirs, model, steps=3)
    assert (ours.values - towards.values).abs().mean() < 0.1 < (model.values - towards.values).abs().mean()


def test_velocity_lasts_from_call_to_call():
    graph, model = made("group norms")
    data = samples(graph, 24)
    given, how = batches(data, 8), {"lr": 0.05, "momentum": 0.9}
    whole = model.clone()
    Session(graph).train(whole, given, Training(**how))
    for run, same in ((Session(graph), True), (Reference(graph), False)):
        parts, velocity = model.clone(), _zeros(model)
        for first in range(0, 24, 8):
            part = Batches(data, given.order[first : first + 8], 8)
            run.train(parts, part, Training(**how, velocity=velocity))
        assert velocity.values.any() and velocity.rest.any()
        assert_same(parts, whole) if same else assert_near(whole, parts, model, steps=3)


def _zeros(model):
    return type(model)(
        model.layout,
        model.bitmap,
        *(torch.zeros_like(x) for x in (model.values, model.rest, model.integers)),
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", [*ODD, "lenet5", "small_cnn"])
def test_one_and_two_threads_give_the_same_bits(name, isa):
    graph, model = made(name)
    given = batches(samples(graph, 35), 16)
    how = Training(lr=0.05, momentum=0.9, max_norm=1.0, seeds=seeds(graph))
    found = []
    for threads in (1, 2):
        with se.use_isa(isa), se.use_threads(threads):
            mine = model.clone()
            Session(graph).train(mine, given, how)
            mask = Session(graph).grow(model, se.Growth(model, 0.3), given, seeds(graph))
            found.append((mine, mask.words))
    (one, words), (two, others) = found
    assert_same(one, two)
    assert torch.equal(words, others)


def test_results_do_not_depend_on_what_ran_before():
    """Other masks with as many entries (the same program), other batch sizes, other networks in between."""
    graph, model = made("shared gradients")
    masks = [captured_model(graph, model, seed) for seed in (1, 2, 3)]
    given, other = batches(samples(graph, 20), 20), batches(samples(graph, 50, seed=1), 7)
    how = Training(lr=0.05, seeds=seeds(graph))
    session = Session(graph)
    for start in (*masks, masks[0], masks[2]):
        alone, among = start.clone(), start.clone()
        Session(graph).train(alone, given, how)
        session.train(start.clone(), other, how)
        session.grow(start, se.Growth(start, 0.5), other, seeds(graph))
        session.evaluate(masks[1], other)
        session.train(among, given, how)
        assert_same(alone, among)


def captured_model(graph, model, seed):
    """`model` on another pattern with as many entries in every layer."""
    growth = se.Growth(model, 0.5)
    for name in model.layout.names:
        growth.add_random(name, seed)
    return model.with_pattern(growth.bitmap())


def assert_ties(graph, model, given, ours, theirs):
    """Entries that only one of two patterns has: few, and their gradients equal but for rounding."""
    sizes = model.layout.segments.sizes
    full = model.with_pattern(from_mask(torch.ones(sum(sizes), dtype=torch.bool), model.layout.segments))
    gradient = Reference(graph).gradient(full, given, seeds(graph))[0].values.abs().split(sizes)
    differ = (to_mask(ours) != to_mask(theirs)).split(sizes)
    for g, only in zip(gradient, differ, strict=True):
        if only.any():
            assert only.sum() <= 8 and g[only].max() - g[only].min() <= 1e-5 * g.max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", [*ODD, "lenet5", "small_cnn", "mlp"])
def test_growth_takes_the_largest_gradients(name, isa):
    graph, model = made(name)
    given = batches(samples(graph, 20), 20)
    before = model.clone()
    with se.use_isa(isa):
        ours = Session(graph).grow(model, se.Growth(model, 0.3), given, seeds(graph))
    theirs = Reference(graph).grow(model, se.Growth(model, 0.3), given, seeds(graph))
    assert_same(model, before)  # also what norms keep
    assert ours.counts.tolist() == theirs.counts.tolist() == model.bitmap.counts.tolist()
    assert_ties(graph, model, given, ours, theirs)
    assert not torch.equal(ours.words, model.bitmap.words)


def test_a_full_layer_stays_full_and_exempt_weights_are_trained_whole():
    graph, model = made("strides", exempt=("2.weight",))
    assert model.layout.names == ("0.weight", "5.weight")
    given = batches(samples(graph, 20), 9, epochs=2)
    ours, theirs = both(graph, model, given, Training(lr=0.05))
    assert_near(ours, theirs, model, steps=6)
    full = model.with_pattern(_with_full_layer(model, 1))
    ours, theirs = both(graph, full, given, Training(lr=0.05))
    assert_near(ours, theirs, full, steps=6)
    grown = Session(graph).grow(full, se.Growth(full, 0.4), batches(samples(graph, 20), 20))
    wanted = Reference(graph).grow(full, se.Growth(full, 0.4), batches(samples(graph, 20), 20))
    assert torch.equal(grown.words, wanted.words) and grown.counts[1] == full.layout.segments.sizes[1]


def _with_full_layer(model, i):
    words = model.bitmap.words.clone()
    full = se.compress(nn.Linear(*reversed(model.layout.shapes[i]))).bitmap.words
    lo, hi = model.bitmap.segments.starts[i : i + 2].tolist()
    words[lo:hi] = full
    return model.layout.bitmap(words)


def test_layers_without_an_entry_train_their_biases():
    graph, model = made("strides", density=0.0)
    assert model.bitmap.nnz == 0
    ours, theirs = both(graph, model, batches(samples(graph, 20), 9), Training(lr=0.05, momentum=0.5))
    assert_near(ours, theirs, model, steps=3)


@pytest.mark.parametrize("seed", range(3))
def test_images_in_bytes_are_normalised_cropped_and_mirrored(seed):
    graph, model = made("winograd")
    rng = np.random.default_rng(seed)
    n, epochs = 21, 3
    data = Data(
        rng.integers(0, 256, (n, *graph.sample)).astype(np.uint8),
        rng.integers(0, graph.num_classes, n),
        rng.random(graph.sample[0], np.float32) * 100,
        50 + rng.random(graph.sample[0], np.float32),
    )
    plain = batches(data, 8, epochs, seed)
    rows, columns = rng.integers(0, 5, (2, n * epochs))
    moves = Moves(rows, columns, rng.random(n * epochs) < 0.5, 2)
    given = Batches(data, plain.order, 8, epochs, moves)
    ours, theirs = both(graph, model, given, Training(lr=0.02))
    assert_near(ours, theirs, model, steps=9, rtol=3e-5)
    other, _ = both(graph, model, plain, Training(lr=0.02))
    assert not torch.equal(other.values, ours.values)


def test_samples_may_be_mapped_from_a_file(tmp_path):
    graph, model = made("winograd")
    data = samples(graph, 20)
    np.save(tmp_path / "x.npy", data.x)
    mapped = Data(np.load(tmp_path / "x.npy", mmap_mode="r"), data.labels)
    found = [model.clone() for _ in range(2)]
    for one, source in zip(found, (data, mapped), strict=True):
        Session(graph).train(one, batches(source, 8), Training(lr=0.05))
    assert_same(*found)


@pytest.mark.parametrize("run", ["train", "gradient", "grow"])
def test_a_norm_of_one_value_is_an_error_as_in_torch(run):
    graph, model = made("vectors")
    session, words = Session(graph), "more than one value per channel when training 1, got a batch of 1"
    more = {"train": [Training(lr=0.1)], "gradient": [], "grow": []}[run]
    model = model.clone()
    before = model.clone()
    for n, size in ((9, 4), (1, 4)) if run != "grow" else ((1, 1),):
        given = batches(samples(graph, n), size)
        with pytest.raises(ValueError, match=words):
            if run == "grow":
                session.grow(model, se.Growth(model, 0.3), given)
            else:
                getattr(session, run)(model, given, *more)
    assert_same(model, before)
    session.evaluate(model, batches(samples(graph, 9), 4))


def test_a_loss_that_is_not_finite_is_told_with_its_batch_and_ends_the_training():
    graph, model = made("vectors")
    data = samples(graph, 40)
    given = batches(data, 10)
    data.x[given.order[25]] = np.inf
    mine, before = model.clone(), model.clone()
    done = Session(graph).train(mine, given, Training(lr=0.1))
    assert done.failed[0] == 2 and not np.isfinite(done.failed[1]) and done.samples == 20
    assert not torch.equal(mine.values, before.values)
    _, gradient = Session(graph).gradient(model, given)
    assert gradient.failed[0] == 2


def test_a_gradient_that_is_not_finite_names_the_weight():
    graph, model = made("strides")
    huge = se.combine([model], [1e30])
    given = batches(samples(graph, 20), 20)
    assert Session(graph).grow(huge, se.Growth(huge, 0.3), given) == "5.weight"  # met first, backward


def test_a_flag_stops_before_the_next_batch():
    graph, model = made("vectors")
    flag = np.ones(1, np.uint8)
    mine = model.clone()
    done = Session(graph).train(mine, batches(samples(graph), 10), Training(lr=0.1, stop=flag))
    assert done.stopped and done.samples == 0
    assert_same(mine, model)


@pytest.mark.parametrize("name", ["batch norm", "dropouts"])
def test_tests_before_and_after_a_training_are_those_on_their_own(name):
    graph, model = made(name)
    mine, before, test = model.clone(), model.clone(), batches(samples(graph, 35, seed=4), 16)
    given, how = batches(samples(graph, 24), 10), Training(lr=0.2, momentum=0.9, seeds=seeds(graph))
    right = Session(graph).train(mine, given, how, test).right
    assert right == tuple(Session(graph).evaluate(one, test) for one in (model, mine))
    Session(graph).train(before, given, how)
    assert_same(mine, before)  # testing changes nothing


def test_a_profile_changes_nothing():
    graph, model = made("batch norm")
    before = model.clone()
    rows = Session(graph).profile(model, batches(samples(graph, 20), 20), times=2)
    assert_same(model, before)
    assert len(rows) == len(Session(graph).program(model.bitmap, 20).planned["train"])
    assert all(0 <= seconds < 10 for _, seconds in rows)
    assert any(name in ("ConvApply 0", "Winograd 0") for name, _ in rows)  # as the instruction set has it
