"""sparsefl.kernels.loss against torch in float64, on every native variant."""

import pytest
import torch
from helpers import assert_close, variants
from torch.nn import functional as F

from sparsefl.kernels import loss, use_backend, use_threads

VARIANTS = variants("loss")
NATIVE = variants("loss", without=["reference"])
BATCHES = [1, 3, 7, 8, 9, 16, 17, 18, 31, 32, 33, 64, 129, 256, 300]


def problem(classes, batch, *, scale=3.0, seed=0):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(classes, batch, generator=draw) * scale
    return logits, torch.randint(classes, (batch,), generator=draw)


def in_float64(logits, labels):
    """Losses and the gradient of their mean, by autograd."""
    x = logits.double().T.contiguous().requires_grad_()
    losses = F.cross_entropy(x, labels, reduction="none")
    losses.mean().backward()
    return losses.detach(), x.grad.T


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("classes", [1, 2, 10, 101])
@pytest.mark.parametrize("batch", BATCHES)
def test_equals_torch(variant, classes, batch):
    logits, labels = problem(classes, batch)
    losses, gradient = in_float64(logits, labels)
    with use_backend(variant), use_threads(2):
        found = loss.cross_entropy(logits, labels, gradient=True)
        alone = loss.cross_entropy(logits, labels)
    assert alone.mean == found.mean and alone.gradient is None and torch.equal(alone.losses, found.losses)
    assert_close(found.losses, losses, terms=classes**0.5, scale=1.0)
    assert_close(found.gradient * batch, gradient * batch, terms=classes**0.5, scale=1.0)
    assert found.mean == pytest.approx(losses.mean().item(), rel=1e-6, abs=1e-7)
    assert found.mean == pytest.approx(found.losses.double().mean().item(), rel=1e-14)


@pytest.mark.parametrize("variant", NATIVE)
def test_exponentials_are_within_one_unit_in_the_last_place(variant):
    """Two classes, one of them far above: the gradient of the other is its exponential, over a power of 2."""
    below = -torch.linspace(18, 76, 2**15)
    logits = torch.stack([torch.zeros_like(below), below])
    with use_backend(variant):
        found = loss.cross_entropy(logits, torch.zeros(len(below), dtype=torch.int64), gradient=True)
    expected = below.double().exp()
    unit = torch.exp2(expected.log2().floor() - 23)
    assert ((found.gradient[1].double() * len(below) - expected).abs() / unit).max() <= 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_very_small_probabilities_are_denormal_and_then_nothing(variant):
    logits = torch.tensor([[0.0] * 4, [-88.0, -100.0, -110.0, -torch.inf]])
    with use_backend(variant):
        found = loss.cross_entropy(logits, torch.tensor([1, 1, 1, 0]), gradient=True)
    assert found.losses.tolist() == [88.0, 100.0, 110.0, 0.0]
    with use_backend(variant):
        small = loss.cross_entropy(logits[:, :1].contiguous(), torch.tensor([0]), gradient=True).gradient[1]
    assert small.item() == pytest.approx(6.0546e-39, rel=1e-3)
    assert found.gradient[:, 3].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("batch", [3, 40])
def test_what_is_not_finite_shows_as_in_torch(variant, value, at, batch):
    logits, labels = problem(5, batch)
    logits[at, 1], labels[1] = value, 2
    losses, gradient = in_float64(logits, labels)
    with use_backend(variant):
        found = loss.cross_entropy(logits, labels, gradient=True)
    close = {"rtol": 1e-5, "atol": 1e-6, "equal_nan": True}
    torch.testing.assert_close(found.losses.double(), losses, **close)
    torch.testing.assert_close(found.gradient.double(), gradient, **close)
    torch.testing.assert_close(torch.tensor(found.mean).double(), losses.mean(), **close)


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_but_minus_infinity_is_not_a_number(variant):
    with use_backend(variant):
        assert loss.cross_entropy(torch.full((3, 9), -torch.inf), torch.zeros(9).long()).mean != 0
        assert not loss.cross_entropy(torch.full((3, 9), -torch.inf), torch.zeros(9).long()).mean < torch.inf


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("batch", BATCHES)
def test_counts_like_argmax(variant, batch):
    logits, labels = problem(4, batch, scale=1.0)
    logits = logits.round()  # ties
    logits[2, ::5] = torch.nan
    logits[3, ::10] = torch.nan
    expected = (logits.argmax(0) == labels).sum().item()
    with use_backend(variant), use_threads(2):
        assert loss.count_correct(logits, labels) == expected
        assert loss.count_correct(logits, logits.argmax(0)) == batch


@pytest.mark.parametrize("variant", NATIVE)
def test_threads_do_not_change_a_bit(variant):
    logits, labels = problem(10, 1000)
    found = []
    for threads in (1, 2, 3):
        with use_backend(variant), use_threads(threads):
            found.append(loss.cross_entropy(logits, labels, gradient=True))
    for other in found[1:]:
        assert other.mean == found[0].mean and torch.equal(other.gradient, found[0].gradient)


def test_bad_input_is_refused():
    logits, labels = problem(4, 6)
    for wrong in (logits[0], logits[:, :0], logits[:0]):
        with pytest.raises(ValueError, match=r"logits as \[classes, batch\]"):
            loss.cross_entropy(wrong, labels)
    with pytest.raises(ValueError, match="contiguous"):
        loss.cross_entropy(logits.T.contiguous().T, labels)
    with pytest.raises(ValueError, match="torch.float32 or torch.float64"):
        loss.count_correct(logits.half(), labels)
    with pytest.raises(ValueError, match="torch.int64"):
        loss.count_correct(logits, labels.int())
    with pytest.raises(ValueError, match=r"expected 6 labels, got \(5,\)"):
        loss.count_correct(logits, labels[1:])
    for wrong in (-1, 4):
        with pytest.raises(ValueError, match=f"labels from 0 to 3, got .*{wrong}"):
            loss.cross_entropy(logits, torch.full((6,), wrong))
