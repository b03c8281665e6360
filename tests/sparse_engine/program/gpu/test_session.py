"""sparse_engine.program.gpu: a group of clients against the CPU session, client by client."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from groups import NETWORKS, pictures, shares, tiny_clients
from helpers import on, variants
from programs import batches, made, samples

from sparse_engine.model.grow import Growth
from sparse_engine.program.batches import Training
from sparse_engine.program.cpu.session import Session
from sparse_engine.program.gpu.plan import LayerOp, NotOnGpu, plan
from sparse_engine.program.gpu.session import GroupSession

OURS = [
    name
    for name in variants("group_conv", without=("reference",))
    if name != "triton" or torch.cuda.is_available()
]
HOW = Training(lr=0.1, momentum=0.9, weight_decay=0.01, max_norm=1.0)  # clips some of the steps


@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("moved", [False, True])
def test_a_training_is_the_one_of_the_cpu(variant, moved):
    graph, models = tiny_clients()
    data = pictures(graph)
    given, tests = shares(data, moved=moved), shares(data, epochs=1)
    ours, theirs = [m.clone() for m in models], [m.clone() for m in models]
    with on(variant) as put:
        found = GroupSession(graph, put.device).train(ours, given, HOW, tests)
    session = Session(graph)
    for k in range(3):
        wanted = session.train(theirs[k], given[k], HOW, tests[k])
        assert torch.allclose(ours[k].values, theirs[k].values, rtol=1e-5, atol=1e-6)
        assert torch.allclose(ours[k].rest, theirs[k].rest, rtol=1e-5, atol=1e-6)
        assert found[k].samples == wanted.samples and found[k].finite and found[k].failed is None
        assert found[k].loss == pytest.approx(wanted.loss, rel=1e-5)
        assert found[k].right == wanted.right
        assert not torch.equal(ours[k].values, models[k].values)


@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("net", [name for name in NETWORKS if name != "tiny"])
def test_norms_sums_and_average_pools(variant, net):
    """A training with tests: models, what batch norms keep and count."""
    graph, models = tiny_clients(2, net)
    data = pictures(graph)
    given, tests = shares(data, epochs=1)[:2], shares(data, epochs=1)[:2]
    ours, theirs = [m.clone() for m in models], [m.clone() for m in models]
    with on(variant) as put:
        found = GroupSession(graph, put.device).train(ours, given, HOW, tests)
    session = Session(graph)
    for k in range(2):
        wanted = session.train(theirs[k], given[k], HOW, tests[k])
        assert torch.allclose(ours[k].values, theirs[k].values, rtol=1e-4, atol=1e-5)
        assert torch.allclose(ours[k].rest, theirs[k].rest, rtol=1e-4, atol=1e-5)
        assert torch.equal(ours[k].integers, theirs[k].integers)
        assert found[k].loss == pytest.approx(wanted.loss, rel=1e-4)
        assert found[k].right == wanted.right
        assert not torch.equal(ours[k].rest, models[k].rest)


@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("name", ["shared values", "group norms"])
def test_values_that_many_read(variant, name):
    """Gradients add up, from sums, layers, norms and pools, in whatever order."""
    found = [made(name, seed=seed) for seed in range(2)]
    graph, models = found[0][0], [model for _, model in found]
    given = [batches(samples(graph, 11, seed), 6) for seed in range(2)]
    given = [replace(each, data=given[0].data) for each in given]
    ours, theirs = [m.clone() for m in models], [m.clone() for m in models]
    how = Training(lr=0.05)
    with on(variant) as put:
        GroupSession(graph, put.device).train(ours, given, how)
    for k in range(2):
        Session(graph).train(theirs[k], given[k], how)
        assert torch.allclose(ours[k].values, theirs[k].values, rtol=1e-4, atol=1e-5)
        assert torch.allclose(ours[k].rest, theirs[k].rest, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("net", ["tiny", "residual, group norm"])
def test_growth_is_the_one_of_the_cpu(variant, net):
    graph, models = tiny_clients(3, net)
    given = shares(pictures(graph), epochs=1)
    with on(variant) as put:
        found = GroupSession(graph, put.device).grow(models, 0.3, given)
    for k, model in enumerate(models):
        wanted = Session(graph).grow(model, Growth(model, 0.3), given[k])
        assert torch.equal(found[k].words, wanted.words)
        assert not torch.equal(wanted.words, model.bitmap.words)


@pytest.mark.parametrize("variant", OURS)
def test_a_diverged_loss_names_its_batch(variant):
    graph, models = tiny_clients()
    given = shares(pictures(graph), epochs=3)
    with on(variant) as put:
        found = GroupSession(graph, put.device).train([m.clone() for m in models], given, Training(lr=1e20))
    wanted = [
        Session(graph).train(m.clone(), b, Training(lr=1e20)) for m, b in zip(models, given, strict=True)
    ]
    assert [each.failed and each.failed[0] for each in found] == [
        each.failed and each.failed[0] for each in wanted
    ]
    assert any(each.failed for each in wanted)


@pytest.mark.parametrize("variant", OURS)
def test_a_stop_is_seen_before_the_next_step(variant):
    graph, models = tiny_clients()
    given = shares(pictures(graph))
    ours = [m.clone() for m in models]
    with on(variant) as put:
        how = Training(lr=0.1, stop=np.ones(1, np.uint8))
        found = GroupSession(graph, put.device).train(ours, given, how)
    assert all(each.stopped and each.samples == 0 for each in found)
    assert all(torch.equal(a.values, b.values) for a, b in zip(ours, models, strict=True))


@pytest.mark.parametrize(
    "name",
    ["lenet5", "mlp", "rows", "small_cnn", "resnet18", "resnet18, batch norm", "shared values", "strides"],
)
def test_plans(name):
    graph, model = made(name)
    found = plan(graph)
    layers = [op.number for op in found.ops if isinstance(op, LayerOp)]
    assert sorted(layers) == list(range(len(model.layout.names)))
    assert found.direct <= found.needed <= found.values.keys()
    assert 0 not in found.needed and found.logits in found.needed - found.direct


def test_a_layer_has_its_pool_and_relu():
    layers = plan(made("lenet5")[0]).network.layers
    assert [(layer.pool, layer.relu) for layer in layers] == [
        ((2, 2), True), ((2, 2), True), ((1, 1), True), ((1, 1), True), ((1, 1), False)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("batch norm", "no GPU version of a batch norm that keeps a mean over all batches"),
        ("kernel 7, unequal padding", r"no GPU version of an average pool of \(5, 8\) to \(2, 3\)"),
        ("groups", "no GPU version of convolutions in groups"),
        ("pools", "pool windows that overlap or are padded"),
        ("dropouts", "there is no GPU version of dropout 0.1"),
        ("a window of 289", "no GPU version of pool windows that overlap"),
    ],
)
def test_what_has_no_gpu_version_says_so(name, sentence):
    graph = made(name, exempt=("1.*",) if name == "groups" else ())[0]
    with pytest.raises(NotOnGpu, match=sentence):
        plan(graph)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [({"rho": 0.1}, "SAM"), ({"scores": torch.zeros(1)}, "last batch")],
)
def test_trainings_without_a_gpu_version_say_so(how, sentence):
    graph, models = tiny_clients(1)
    given = [batches(samples(graph), 5)]
    with pytest.raises(NotOnGpu, match=sentence):
        GroupSession(graph, "cpu").train(models, given, Training(lr=0.1, **how))


def test_a_batch_that_is_too_large_is_refused():
    graph, models = tiny_clients(1)
    with pytest.raises(ValueError, match="expected a batch of 1 to 128 samples, got 200"):
        GroupSession(graph, "cpu").evaluate(models, [batches(samples(graph, 300), 200)])


def test_models_without_batches_are_refused():
    graph, models = tiny_clients(2)
    with pytest.raises(ValueError, match="expected a list of batches per model, got 1 for 2 models"):
        GroupSession(graph, "cpu").evaluate(models, [batches(samples(graph), 5)])
