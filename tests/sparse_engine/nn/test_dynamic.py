"""RigL beside an optimizer: which steps move masks, what moves, and what the optimizer remembers."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparse_engine as se


def small(density=0.3, seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(32, 5)
    )
    return se.sparsify(net, density=density, seed=seed)


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16, 1, 8, 8, generator=generator), torch.randint(0, 5, (16,), generator=generator)


def backward(net, seed=0):
    x, y = batch(seed)
    net.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    return loss.item()


def test_masks_move_every_so_many_steps_until_they_stay():
    net = small()
    rigl = se.RigL(net, se.SparseSGD(net, lr=0.1), num_steps=20, every=4, until=0.6)
    moved = []
    for t in range(20):
        backward(net, t)
        if rigl.step():
            moved.append(t)
    assert moved == [4, 8] and rigl.moves == 2 and rigl.fraction == 0  # 12 is past 0.6 of 20


def test_a_move_drops_the_smallest_and_grows_the_largest_gradients():
    net = small()
    rigl = se.RigL(net, se.SparseSGD(net, lr=0.1), num_steps=10, every=1, alpha0=0.4)
    backward(net)
    rigl.step()
    fraction, before = rigl.fraction, se.to_dense(net)
    masks = se.masks(net)
    backward(before)  # plain torch has every gradient
    backward(net)
    assert rigl.step()
    for name, new in se.masks(net).items():
        old, w = masks[name].flatten(), before.get_parameter(name).detach().flatten()
        g = before.get_parameter(name).grad.abs().flatten()
        n = math.ceil(fraction * int(old.sum()))
        kept = old.clone()
        kept[torch.where(old)[0][w[old].abs().argsort()[:n]]] = False
        g[kept] = -1
        kept[g.argsort(descending=True)[:n]] = True
        assert torch.equal(new.flatten(), kept), name


def test_grown_weights_start_at_zero_and_kept_ones_stay():
    net = small()
    rigl = se.RigL(net, se.SparseSGD(net, lr=0.1), num_steps=10, every=1)
    backward(net)
    rigl.step()
    before, masks = se.to_dense(net), se.masks(net)
    backward(net)
    rigl.step()
    after = se.to_dense(net)
    for name, mask in se.masks(net).items():
        w, old = after.get_parameter(name), before.get_parameter(name)
        assert torch.equal(w[mask & masks[name] & (w != 0)], old[mask & masks[name] & (w != 0)])
        assert not w[mask & ~masks[name]].any()


@pytest.mark.parametrize("make", [
    lambda net: se.SparseSGD(net, lr=0.1, momentum=0.9),
    lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
    lambda net: torch.optim.Adam(net.parameters()),
])  # fmt: skip
def test_what_the_optimizer_remembers_follows_the_weights(make):
    net = small()
    optimizer = make(net)
    rigl = se.RigL(net, optimizer, num_steps=10, every=3)
    for t in range(3):
        backward(net, t)
        rigl.step()
    layer = net[0]
    old = layer.pattern.mask().flatten()
    remembered = {
        key: torch.zeros(old.numel()).masked_scatter(old, x.flatten())
        for key, x in optimizer.state[layer.weight].items()
        if isinstance(x, torch.Tensor) and x.numel() == int(old.sum())
    }
    assert remembered
    w = torch.zeros(old.numel()).masked_scatter(old, layer.weight.detach())
    backward(net, 3)
    assert rigl.step()
    new = layer.pattern.mask().flatten()
    now = torch.zeros(old.numel()).masked_scatter(new, layer.weight.detach())
    stayed = new & old & (now == w)  # what was dropped and grown at once starts anew
    for key, before in remembered.items():
        after = torch.zeros(old.numel()).masked_scatter(new, optimizer.state[layer.weight][key].flatten())
        assert torch.equal(after[stayed], before[stayed]) and not after[new & ~stayed].any()


def test_the_number_stored_stays_and_training_learns():
    net = small(0.2)
    counts = {name: int(m.sum()) for name, m in se.masks(net).items()}
    rigl = se.RigL(net, se.SparseSGD(net, lr=0.3, momentum=0.9), num_steps=60, every=5)
    losses = [(backward(net, 1), rigl.step())[0] for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]
    assert counts == {name: int(m.sum()) for name, m in se.masks(net).items()}


def test_the_last_backward_of_a_step_decides():
    nets = [small(), small()]
    for net, passes in zip(nets, [(2,), (1, 2)], strict=True):
        rigl = se.RigL(net, se.SparseSGD(net, lr=0.0), num_steps=10, every=1)
        backward(net)
        rigl.step()
        for seed in passes:
            backward(net, seed)
        rigl.step()
    first, second = (se.masks(net) for net in nets)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_random_growth_repeats_by_its_seed_and_needs_no_gradient():
    def trained(seed):
        net = small()
        rigl = se.RigL(net, se.SparseSGD(net, lr=0.0), num_steps=10, every=1, grow="random", seed=seed)
        for t in range(3):
            backward(net, t)
            assert net[0].watch is None
            rigl.step()
        return se.masks(net)["0.weight"]

    assert torch.equal(trained(1), trained(1)) and not torch.equal(trained(1), trained(2))


def test_training_goes_on_from_a_checkpoint():
    def make():
        net = small()
        optimizer = se.SparseSGD(net, lr=0.1, momentum=0.9)
        return net, optimizer, se.RigL(net, optimizer, num_steps=12, every=3)

    def steps(parts, start, stop):
        net, _, rigl = parts
        for t in range(start, stop):
            backward(net, t)
            rigl.step()

    whole, first, second = make(), make(), make()
    steps(whole, 0, 10)
    steps(first, 0, 6)  # the next step moves masks
    for one, other in zip(first, second, strict=True):
        other.load_state_dict(one.state_dict())
    steps(second, 6, 10)
    for a, b in zip(whole[0].state_dict().values(), second[0].state_dict().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_steps": 0}, "num_steps"),
        ({"every": 0}, "every"),
        ({"until": 0.0}, "until"),
        ({"alpha0": 1.5}, "alpha0"),
        ({"grow": "best"}, "grow"),
    ],
)
def test_wrong_settings_are_refused(changes, words):
    net = small()
    with pytest.raises(ValueError, match=words):
        se.RigL(net, se.SparseSGD(net, lr=0.1), **{"num_steps": 10} | changes)


def test_a_dense_network_is_refused():
    net = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="sparsify"):
        se.RigL(net, torch.optim.SGD(net.parameters(), lr=0.1), num_steps=10)


def test_a_move_leaves_batch_norm_and_its_momentum_alone():
    """The pass that moves masks is an ordinary one to a norm; the step after it goes on with all momentum."""
    torch.manual_seed(0)
    net = se.sparsify(
        nn.Sequential(
            nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5)
        ),
        density=0.3,
    )
    optimizer = se.SparseSGD(net, lr=0.1, momentum=0.9)
    rigl = se.RigL(net, optimizer, num_steps=10, every=2)
    for t in range(2):
        backward(net, t)
        rigl.step()
    norm, plain = net[1], se.to_dense(net)
    before = {name: x.clone() for name, x in norm.named_parameters()}
    remembered = {name: optimizer.state[p]["u"].clone() for name, p in norm.named_parameters()}
    backward(plain, 2)
    backward(net, 2)
    assert rigl.step()
    for name, x in norm.named_parameters():
        assert torch.equal(x, before[name]) and torch.equal(optimizer.state[x]["u"], remembered[name])
    torch.testing.assert_close(norm.running_mean, plain[1].running_mean)
    torch.testing.assert_close(norm.running_var, plain[1].running_var)
    assert norm.num_batches_tracked == plain[1].num_batches_tracked == 3
