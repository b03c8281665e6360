"""sparsefl.kernels.group_conv: layers of many clients against float64, and against the native layers."""

import pytest
import torch
from groups import LAYERS, images, network, patterns
from helpers import assert_close, host, on, randn, variants

from sparsefl.kernels import sparse_conv, use_backend
from sparsefl.kernels.errors import NoKernel
from sparsefl.kernels.group import Layer, lanes_for
from sparsefl.kernels.group_conv import (
    Images,
    dense_gradient,
    forward,
    input_gradient,
    make,
    weight_gradient,
)
from sparsefl.kernels.layout import Bitmap, Segments
from sparsefl.kernels.sparse_conv import Conv, Geometry

OURS = variants("group_conv", without=("reference",))
CASES = [("linear", 3, 64), ("3x3, padding", 2, 16), ("3x3, pool", 2, 16), ("dilation", 1, 16)]
CASES += [("2x3, stride 2, pool without relu", 1, 32), ("linear, no bias", 2, 128)]


def arena_of(group, seed=1):
    return randn(group.length, seed)


def passes(variant, layer, clients, batch, density, dtype=torch.float32):
    """y, gate, dx, gradients, dense gradients of a network of one layer."""
    net = network(layer)
    x, dz = images(clients, layer.x_shape, batch, 2), images(clients, layer.z_shape, batch, 3)
    with on(variant) as put:
        group = make(net, put(patterns(net, clients, density)))
        arena, x, dz = (put(t.to(dtype)) for t in (arena_of(group), x, dz))
        y = torch.empty(clients, *layer.y_shape, batch, dtype=dtype, device=put.device)
        gate = torch.empty(y.shape, dtype=torch.uint8, device=put.device) if layer.gated else None
        forward(group, 0, arena, x, y, gate)
        dx = torch.empty_like(x)
        input_gradient(group, 0, arena, dz, dx)
        gradients = torch.zeros_like(arena)
        weight_gradient(group, [Images(x, dz)], gradients)
        dense = torch.empty(group.bitmap.segments.numel, dtype=dtype, device=put.device)
        dense_gradient(group, [Images(x, dz)], dense)
        return host((y, gate, dx, gradients, dense))


@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_matches_float64(variant, case, density):
    name, clients, batch = case
    layer = LAYERS[name]
    y, gate, dx, gradients, dense = passes(variant, layer, clients, batch, density)
    y64, gate64, dx64, gradients64, dense64 = passes(
        "reference", layer, clients, batch, density, torch.float64
    )
    terms = layer.columns
    assert_close(y, y64, terms=terms, scale=1.0)
    assert gate is None or torch.equal(gate, gate64)
    assert_close(dx, dx64, terms=terms, scale=1.0)
    summed = layer.out[0] * layer.out[1] * batch
    assert_close(gradients, gradients64, terms=summed, scale=1.0)
    assert_close(dense, dense64, terms=summed, scale=1.0)


def bitmap_of(group, g, number):
    one = group.bitmap.segment(g * len(group.network.layers) + number)
    return Bitmap(one.words, Segments(one.segments.sizes), one.offsets)


def test_a_client_of_the_reference_is_a_native_layer():
    layer = LAYERS["3x3, padding"]
    y, _, dx, gradients, _ = passes("reference", layer, 2, 16, 0.5)
    net = network(layer)
    with use_backend("reference"):
        group = make(net, patterns(net, 2, 0.5))
    arena, g = arena_of(group), layer.geometry
    x, dz = images(2, layer.x_shape, 16, 2), images(2, layer.z_shape, 16, 3)
    offsets = group.bitmap.offsets.tolist()
    for k in range(2):
        conv = Conv(bitmap_of(group, k, 0), g.out_channels, g.in_channels, g.kernel, g.stride, g.padding)
        here = slice(offsets[k], offsets[k + 1])
        bias = arena[group.bitmap.nnz + 3 * k :][:3].contiguous()
        native = sparse_conv.forward(conv, arena[here], x[k].contiguous(), bias).relu()
        assert_close(native, y[k], terms=20)
        back = sparse_conv.input_gradient(conv, arena[here], dz[k].contiguous(), layer.size)
        assert_close(back, dx[k], terms=20)
        values = sparse_conv.weight_gradient(conv, x[k].contiguous(), dz[k].contiguous())
        assert_close(values, gradients[here], terms=500)


@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize(
    "name", ["3x3, pool", "3x3, padding", "2x3, stride 2, pool without relu", "dilation"]
)
def test_gradients_pass_the_gate_of_the_layer_before(variant, name):
    """A linear layer sees the images of the layer before it as a vector."""
    before = LAYERS[name]
    layer = Layer(Geometry(4, torch.Size(before.y_shape).numel()))
    net, clients, batch = network(before, layer), 2, 16
    gate = torch.randint(0, 5, (clients, *before.y_shape, batch), dtype=torch.uint8)
    found = []
    for each, dtype in ((variant, torch.float32), ("reference", torch.float64)):
        with on(each) as put:
            group = make(net, put(patterns(net, clients, 0.4)))
            arena, dz = arena_of(group).to(dtype), images(clients, layer.z_shape, batch, 3).to(dtype)
            arena, dz = put((arena, dz))
            dx = torch.full((clients, *before.z_shape, batch), torch.nan, dtype=dtype, device=put.device)
            input_gradient(group, 1, arena, dz, dx, before, put(gate) if before.gated else None)
            found.append(host(dx))
    assert_close(*found, terms=8, scale=1.0)
    if before.pool != (1, 1):
        assert (found[0] == 0).any(), "nothing was shut"


@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("density", [0.0, 0.2, 1.0])
def test_the_index_is_the_one_of_the_reference(variant, density):
    net = network(LAYERS["3x3, pool"], LAYERS["dilation"], LAYERS["linear"])
    found = []
    for each in (variant, "reference"):
        with on(each) as put:
            index = make(net, put(patterns(net, 3, density))).index
            found.append([x.cpu() for x in index])
    ours, theirs = found
    values = len(theirs[2])
    ours[0][:values, 3] = 0  # its own place: only `turned` has a use for it
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("variant", OURS)
def test_weight_gradients_of_all_layers_at_once(variant):
    layers = [LAYERS["3x3, pool"], LAYERS["linear"], LAYERS["linear, no bias"]]
    net, clients = network(*layers), 2
    seen = [
        Images(images(clients, layer.x_shape, 16, n), images(clients, layer.z_shape, 16, n + 9))
        for n, layer in enumerate(layers)
    ]
    found = []
    for each, dtype in ((variant, torch.float32), ("reference", torch.float64)):
        with on(each) as put:
            group = make(net, put(patterns(net, clients, 0.3)))
            there = [Images(put(x.to(dtype)), put(dz.to(dtype))) for x, dz in seen]
            gradients = torch.zeros(group.length, dtype=dtype, device=put.device)
            weight_gradient(group, there, gradients)
            found.append(host(gradients))
    assert_close(*found, terms=400, scale=1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 9, 1, 1, 15)}, "expected x as"),
        ({"x": torch.zeros(1, 9, 1, 1, 16)}, "expected x as"),
        ({"arena": torch.zeros(3)}, "numbers in the group's arena"),
        ({"gate": None}, "expected a gate"),
        ({"y": torch.zeros(2, 70, 1, 1, 32)}, "expected y as"),
    ],
)
def test_bad_input_is_refused(change, message):
    layer = LAYERS["linear"]
    net = network(layer)
    with use_backend("reference"):
        group = make(net, patterns(net, 2, 0.3))
        y = torch.zeros(2, 70, 1, 1, 16)
        given = {
            "arena": arena_of(group),
            "x": torch.zeros(2, 9, 1, 1, 16),
            "y": y,
            "gate": torch.zeros(y.shape, dtype=torch.uint8),
        }
        with pytest.raises(ValueError, match=message):
            forward(group, 0, **(given | change))


def test_there_is_no_native_kernel_and_a_sentence_says_so():
    net = network(LAYERS["linear"])
    with pytest.raises(NoKernel, match="there is no cpu kernel of group_conv yet"):
        make(net, patterns(net, 2, 0.3))


def test_lanes():
    assert [lanes_for(n) for n in (1, 16, 17, 100, 128)] == [16, 16, 32, 128, 128]
    with pytest.raises(ValueError, match="expected a batch of 1 to 128 samples, got 129"):
        lanes_for(129)
