"""Batches against a plain loop over images; random order and augmentation from the given stream alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from fl.data import batches, evaluation_batches, from_arrays, standardised
from fl.data.batches import PAD
from fl.data.dataset import Part, statistics
from fl.rng import stream


def epoch(data, indices, size, seed=0, **options):
    return list(batches(data, np.asarray(indices), size, stream(seed, "batches"), **options))


def joined(parts):
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def augmented_one_by_one(images, shifts, mirrored):
    """Crop and mirror as one would write it for one image."""
    out = []
    for image, top, left, flip in zip(images, *shifts, mirrored, strict=True):
        padded = np.pad(image, ((0, 0), (PAD, PAD), (PAD, PAD)))
        crop = padded[:, top : top + image.shape[1], left : left + image.shape[2]]
        out.append(crop[:, :, ::-1] if flip else crop)
    return np.array(out).reshape(images.shape)


@pytest.mark.parametrize("batch_last", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.float32])
@pytest.mark.parametrize("size", [1, 18, 33, 40])
def test_an_epoch_is_the_loop_over_its_draws(pictures, kind, size, batch_last):
    """The same bits as one image after the other, changed, then normalised by torch."""
    data = pictures()
    for part in (data.train, data.test):
        object.__setattr__(part, "x", part.x.astype(kind))
    rng = stream(3, "batches")
    order = rng.permutation(np.arange(40))
    shifts, mirrored = rng.integers(0, 2 * PAD + 1, (2, 40)), rng.random(40) < 0.5
    images = torch.from_numpy(augmented_one_by_one(data.train.x[order], shifts, mirrored)).float()
    mean, std = (torch.tensor(v, dtype=torch.float32).view(3, 1, 1) for v in (data.mean, data.std))
    x, y = joined(epoch(data, range(40), size, seed=3, batch_last=batch_last))
    assert torch.equal(x, images.sub_(mean).div_(std))
    assert y.tolist() == data.train.labels[order].tolist()


def test_samples_may_lie_in_any_order_in_memory():
    x = np.random.default_rng(0).normal(size=(6, 6, 3, 20)).astype(np.float32).transpose(3, 2, 0, 1)
    copied = from_arrays(x, np.arange(20) % 2, x, np.arange(20) % 2)
    given = replace(copied, train=Part(x, copied.train.labels))
    assert copied.train.x.flags.c_contiguous and not given.train.x.flags.c_contiguous
    for a, b in zip(epoch(given, range(20), 7), epoch(copied, range(20), 7), strict=True):
        assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])


@pytest.mark.parametrize("augment", [False, True])
def test_an_epoch_has_every_sample_once(pictures, augment):
    data = pictures(augment=augment)
    indices = np.array([3, 1, 4, 15, 9, 2, 6], dtype=np.int32)
    parts = epoch(data, indices, 3)
    assert [len(y) for _, y in parts] == [3, 3, 1]
    for x, y in parts:
        assert x.shape == (len(y), 3, 32, 32) and x.dtype == torch.float32 and y.dtype == torch.int64
    assert sorted(joined(parts)[1].tolist()) == sorted((indices % 3).tolist())


def test_values_are_normalised(pictures):
    data = pictures(augment=False)
    x, y = joined(epoch(data, range(40), 7))
    mean, std = (np.array(v).reshape(3, 1, 1) for v in (data.mean, data.std))
    images = (data.train.x.astype(np.float64) - mean) / std
    order = [int(np.abs(images - image.numpy()).max((1, 2, 3)).argmin()) for image in x]
    assert sorted(order) == list(range(40))
    np.testing.assert_allclose(x.numpy(), images[order], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(y.numpy(), data.train.labels[order])


def test_black_around_an_image_is_byte_0(pictures):
    data = pictures()
    x, _ = joined(epoch(data, range(40), 40))
    black = -torch.tensor(data.mean).view(3, 1, 1) / torch.tensor(data.std).view(3, 1, 1)
    assert ((x[:, :, 0] - black[:, 0]).abs().amax((1, 2)) < 1e-6).any()  # a row of some image is padding


def test_same_stream_same_bits(pictures):
    data = pictures()
    (a, la), (b, lb), (c, _) = (joined(epoch(data, range(40), 16, seed)) for seed in (5, 5, 6))
    assert torch.equal(a, b) and torch.equal(la, lb) and not torch.equal(a, c)


@pytest.mark.parametrize("size", [1, 7, 39, 40, 1000])
def test_batch_size_changes_nothing_else(pictures, size):
    data = pictures()
    (a, la), (b, lb) = joined(epoch(data, range(40), 16)), joined(epoch(data, range(40), size))
    assert torch.equal(a, b) and torch.equal(la, lb)


def test_one_batch_costs_the_stream_as_much_as_an_epoch(pictures):
    data = pictures()
    one, whole = (stream(0, "x") for _ in range(2))
    next(batches(data, np.arange(40), 8, one))
    list(batches(data, np.arange(40), 8, whole))
    assert one.integers(2**60) == whole.integers(2**60)


def test_nobody_else_draws(pictures):
    before = torch.random.get_rng_state(), np.random.get_state()[1].tolist()
    epoch(pictures(), range(40), 8)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()


def test_orders_shifts_and_mirrors_are_uniform(pictures):
    """Each image says where it came from: pixel (i, j) of image k is worth its place."""
    data = pictures(n=40, shape=(1, 16, 12))
    data.train.x[:] = (1 + np.arange(16 * 12)).reshape(16, 12)  # 1 to 192, no 0
    counts = {"top": np.zeros(9), "left": np.zeros(9), "mirrored": np.zeros(2)}
    for seed in range(50):
        x, _ = joined(epoch(data, range(40), 40, seed))
        for image in (x.numpy()[:, 0] * data.std[0] + data.mean[0]).round().astype(int):
            value = image[8, 6] - 1  # inside whatever the shift
            row, column = divmod(value, 12)
            mirrored = image[8, 7] < image[8, 6]
            counts["top"][row - 8 + PAD] += 1
            counts["left"][column - (5 if mirrored else 6) + PAD] += 1
            counts["mirrored"][int(mirrored)] += 1
    for seen in counts.values():
        assert seen.sum() == 2000 and stats.chisquare(seen).pvalue > 1e-3


def test_order_is_random(pictures):
    data = pictures(n=6, shape=(1, 4, 4), augment=False)
    data.train.labels[:] = np.arange(6) % 3
    data.train.x[:] = np.arange(6).reshape(6, 1, 1, 1)
    first = np.zeros(6)
    for seed in range(600):
        x, _ = next(batches(data, np.arange(6), 1, stream(seed, "batches")))
        first[int((x[0, 0, 0, 0] * data.std[0] + data.mean[0]).round())] += 1
    assert stats.chisquare(first).pvalue > 1e-3


def test_images_change_where_the_data_set_says_so(pictures):
    plain, changing = pictures(augment=False), pictures(augment=True)
    a, b = (joined(epoch(data, range(40), 8))[0] for data in (plain, replace(changing, augment=False)))
    assert torch.equal(a, b)
    assert not torch.equal(joined(epoch(plain, range(40), 8))[0], joined(epoch(changing, range(40), 8))[0])


def test_evaluation_keeps_order_and_images(pictures):
    data = pictures(augment=True)
    indices = np.array([7, 0, 19, 3, 3], dtype=np.int32)
    parts = list(evaluation_batches(data, indices, 2))
    assert [len(y) for _, y in parts] == [2, 2, 1]
    x, y = joined(parts)
    mean, std = (np.array(v, np.float32).reshape(3, 1, 1) for v in (data.mean, data.std))
    np.testing.assert_array_equal(x.numpy(), (data.test.x[indices] - mean) / std)
    assert y.tolist() == (indices % 3).tolist()


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("size", [1, 7, 40])
def test_batch_last_changes_the_memory_alone(pictures, augment, size):
    data, tested = pictures(augment=augment), np.arange(20)
    pairs = [
        (epoch(data, range(40), size), epoch(data, range(40), size, batch_last=True)),
        (evaluation_batches(data, tested, size), evaluation_batches(data, tested, size, batch_last=True)),
    ]
    for plain, turned in pairs:
        for (x, y), (x2, y2) in zip(plain, turned, strict=True):
            assert torch.equal(x, x2) and torch.equal(y, y2)
            assert x.is_contiguous() and x2.permute(1, 2, 3, 0).is_contiguous()


def test_batch_last_says_nothing_about_vectors():
    x = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
    data = standardised(from_arrays(x, np.zeros(20, int), x, np.zeros(20, int)))
    (plain, _), (turned, _) = (
        next(evaluation_batches(data, np.arange(20), 20, batch_last=last)) for last in (False, True)
    )
    assert torch.equal(plain, turned) and turned.is_contiguous()


@pytest.mark.parametrize("batch_last", [False, True])
def test_batches_are_the_callers_own(pictures, batch_last):
    data = pictures()
    before = data.train.x.copy(), data.train.labels.copy(), data.test.labels.copy()
    how = {"batch_last": batch_last}
    for x, y in [*epoch(data, range(40), 8, **how), *evaluation_batches(data, np.arange(20), 8, **how)]:
        x.zero_()
        y.zero_()
    np.testing.assert_array_equal(before[0], data.train.x)
    np.testing.assert_array_equal(before[1], data.train.labels)
    np.testing.assert_array_equal(before[2], data.test.labels)


def test_no_samples_no_batches(pictures):
    nobody = np.array([], dtype=np.int32)
    assert epoch(pictures(), nobody, 4) == [] == list(evaluation_batches(pictures(), nobody, 4))


@pytest.mark.parametrize("read", [lambda *a: batches(*a, stream(0, "x")), evaluation_batches])
@pytest.mark.parametrize(
    ("indices", "size", "message"),
    [
        (np.arange(3), 0, "batch size of at least 1, got 0"),
        (np.array([0.0, 1.0]), 2, r"list of integers, got float64 \(2,\)"),
        (np.arange(4).reshape(2, 2), 2, r"list of integers, got int64 \(2, 2\)"),
        (np.array([0, -1]), 2, "got -1 to 0"),
        (np.array([3, 40]), 2, r"from 0 to (39|19), got 3 to 40"),
    ],
)
def test_refusals_before_the_first_batch(pictures, read, indices, size, message):
    with pytest.raises(ValueError, match=message):
        read(pictures(), indices, size)


@pytest.mark.parametrize("shape", [(5,), (4, 2), (3, 6, 6), (2, 2, 2, 2)])
def test_numbers_come_out_as_they_are_and_stay_so(shape):
    x = np.random.default_rng(0).normal(size=(20, *shape)).astype(np.float32)
    data = from_arrays(x, np.arange(20) % 2, x, np.arange(20) % 2)
    got, labels = next(evaluation_batches(data, np.arange(3, 9), 6))
    np.testing.assert_array_equal(got.numpy(), x[3:9])
    got, labels = next(batches(data, np.arange(20), 20, np.random.default_rng(0)))
    order = np.random.default_rng(0).permutation(20)
    np.testing.assert_array_equal(got.numpy(), x[order])
    assert labels.tolist() == (order % 2).tolist()
    got.zero_()
    assert data.train.x.any(axis=tuple(range(1, x.ndim))).all()  # the set has not changed


@pytest.mark.parametrize(("shape", "view"), [((5,), (5,)), ((4, 2), (2,)), ((3, 6, 6), (3, 1, 1))])
def test_numbers_with_a_mean_are_normalised(shape, view):
    x = np.random.default_rng(0).normal(3, 2, size=(20, *shape)).astype(np.float32)
    mean, std = statistics(x)
    data = standardised(from_arrays(x, np.zeros(20, int), x, np.zeros(20, int)))
    got, _ = next(evaluation_batches(data, np.arange(20), 20))
    expected = (x - np.reshape(mean, view)) / np.reshape(std, view)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(data.test.x, x)


def test_images_of_numbers_are_cropped_and_mirrored():
    x = np.random.default_rng(0).normal(size=(20, 3, 6, 6)).astype(np.float32)
    data = replace(from_arrays(x, np.zeros(20, int), x, np.zeros(20, int)), augment=True)
    got, _ = next(batches(data, np.arange(20), 20, np.random.default_rng(0)))
    assert got.shape == (20, 3, 6, 6) and (got == 0).any()
    assert set(got[got != 0].tolist()) <= set(x.reshape(-1).tolist())
