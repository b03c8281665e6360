"""A message in one native call has the bytes that its parts have."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sparse_engine as se
from sparse_engine.wire import message, whole
from sparsefl.kernels import native, registry
from sparsefl.kernels.layout import Segments

NETWORKS = {
    "mlp": lambda: se.models.mlp(),
    "lenet5": lambda: se.models.lenet5(),
    "batch norm": lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5)),
    "no weights": lambda: torch.nn.BatchNorm1d(3),
}


def from_parts(model, sender=0, round=0):
    parts = message._message(model, sender, round, "fp32", None, None, None, True).parts
    return b"".join(part.data for part in parts)


@pytest.mark.parametrize("isa", native.isas())
@pytest.mark.parametrize("density", [0.01, 0.1, 0.45, 0.5, 0.55, 0.97, 1.0])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_same_bytes(network, density, isa):
    torch.manual_seed(0)
    made = NETWORKS[network]()
    net = se.sparsify(made, density=density) if list(made.parameters())[0].dim() > 1 else made
    model = se.compress(net)
    with native.use_isa(isa):
        blob = whole.encode(model, 2**32 - 1, 7)
    assert blob == from_parts(model, 2**32 - 1, 7)
    back = se.wire.decode(blob, like=model, sender=2**32 - 1, round=7)
    assert torch.equal(back.values, model.values) and torch.equal(back.rest, model.rest)


@given(
    st.lists(st.integers(0, 300), max_size=4),
    st.floats(0, 1),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 1.0, 1e-30, 1e30]),
)
def test_any_shape_any_numbers(sizes, density, seed, scale):
    """Empty and full weights, weights of one entry, numbers that all are 0."""
    generator = torch.Generator().manual_seed(seed)
    layout = se.Layout(tuple(f"w{i}" for i in range(len(sizes))), tuple((n,) for n in sizes))
    masks = {f"w{i}": torch.rand(n, generator=generator) < density for i, n in enumerate(sizes)}
    bitmap = layout.bitmap_of(masks)
    values = scale * torch.randn(bitmap.nnz, generator=generator)
    model = se.Model(layout, bitmap, values, torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    assert whole.encode(model, 1, 2) == from_parts(model, 1, 2)


def test_exempt_weights_travel_with_the_values():
    torch.manual_seed(0)
    net = se.sparsify(se.models.lenet5(), density=0.3, exempt=["conv1.weight", "fc3.weight"])
    model = se.compress(net)
    assert whole.encode(model, 0, 0) == from_parts(model)


@pytest.mark.parametrize("part", ["values", "rest"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_refused(part, bad):
    model = se.compress(se.sparsify(se.models.mlp(), density=0.5)).clone()
    getattr(model, part)[-1] = bad
    assert whole.encode(model, 0, 0) is None
    with pytest.raises(ValueError, match="finite numbers"):
        se.wire.encode(model)


def test_large_finite_numbers_are_none_of_these():
    model = se.compress(se.sparsify(se.models.mlp(), density=0.5))
    model = replace(model, values=torch.full_like(model.values, 3e38))
    assert whole.encode(model, 0, 0) == from_parts(model)


def test_other_backends_and_forms_go_by_parts(monkeypatch):
    model = se.compress(se.sparsify(se.models.mlp(), density=0.5))
    with registry.use_backend("reference"):
        assert whole.encode(model, 0, 0) is None
    used = []
    monkeypatch.setattr(whole, "encode", lambda *given: used.append(given))
    se.wire.encode(model, values="bf16")
    se.wire.encode(model, known=model)
    se.wire.encode(model, pack=False)
    se.wire.encode(model, mask="bitmap")
    se.wire.encode(model, residual=se.wire.Residual())
    assert not used
    se.wire.encode(model)
    assert len(used) == 1


def test_a_wrong_number_is_a_sentence():
    model = se.compress(se.sparsify(se.models.mlp(), density=0.5))
    with pytest.raises(ValueError, match="expected a sender and a round from 0"):
        se.wire.encode(model, sender=2**32)


def test_room_is_enough_for_noise():
    """Masks and mantissas that no code makes shorter: the largest message that there is."""
    layout = se.Layout(("w",), ((4096,),))
    assert layout.segments == Segments((4096,))
    mask = torch.arange(4096) % 2 == 0
    words = torch.randint(
        -(2**31), 2**31, (2048,), generator=torch.Generator().manual_seed(0), dtype=torch.int32
    )
    values = words.view(torch.float32)
    values = torch.where(values.isfinite(), values, 1.0)
    empty = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    model = se.Model(layout, layout.bitmap_of({"w": mask}), values, *empty)
    assert whole.encode(model, 0, 0) == from_parts(model)
