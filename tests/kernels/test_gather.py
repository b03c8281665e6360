"""sparsefl.kernels.gather: a difference and a quotient, so it equals torch bit for bit, on every variant."""

import numpy as np
import pytest
import torch
from helpers import variants
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefl.kernels import use_backend, use_threads
from sparsefl.kernels.gather import Moves, gather

VARIANTS = variants("gather")
SHAPES = [
    (1, 1, 1),
    (3, 5, 7),
    (1, 8, 8),
    (2, 9, 16),
    (3, 6, 17),
    (1, 28, 28),
    (3, 33, 35),
    (1,),
    (9,),
    (40,),
    (3, 5),
    (6, 20),
    (2, 3, 4, 5),
]


def data_set(shape, dtype, n=50, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (n, *shape)) if dtype == np.uint8 else rng.normal(size=(n, *shape))
    return x.astype(dtype)


def statistics(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(100, 20, count).astype(np.float32), rng.uniform(0.1, 50, count).astype(np.float32)


def draws(n, padding, seed=0):
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, 2 * padding + 1, (2, n))
    return Moves(starts[0], starts[1], rng.random(n) < 0.5, padding)


def moved_one_by_one(images, moves):
    """Crop and mirror as one would write it for one image."""
    pad, out = moves.padding, []
    for image, top, left, flip in zip(images, *moves[:3], strict=True):
        padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)))
        crop = padded[:, top : top + image.shape[1], left : left + image.shape[2]]
        out.append(crop[:, :, ::-1] if flip else crop)
    return np.array(out).reshape(images.shape)


def by_hand(x, indices, mean=None, std=None, moves=None):
    chosen = x[indices]
    if moves:
        chosen = moved_one_by_one(chosen, moves)
    found = torch.from_numpy(chosen.copy()).float()
    if mean is not None:
        shape = (-1, 1, 1) if x.ndim == 4 else (-1,)
        found.sub_(torch.from_numpy(mean).view(shape)).div_(torch.from_numpy(std).view(shape))
    return found.movedim(0, -1)


def compare(variant, x, indices, *how, threads=2):
    with use_backend(variant), use_threads(threads):
        found = gather(x, indices, *how)
    assert found.is_contiguous() and found.dtype == torch.float32
    assert torch.equal(found, by_hand(x, indices, *how))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("batch", [0, 1, 3, 15, 16, 17, 18, 32, 33])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_plain_torch(variant, shape, batch, dtype):
    x = data_set(shape, dtype)
    indices = np.random.default_rng(1).integers(0, len(x), batch)
    for count in {0, shape[0]} if len(shape) == 3 else {0, 1, shape[-1]}:
        compare(variant, x, indices, *(statistics(count) if count else ()))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("batch", [0, 1, 3, 18, 32, 33])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if len(shape) == 3], ids=str)
@pytest.mark.parametrize("padding", [0, 1, 4, 20])
def test_images_are_moved(variant, shape, batch, dtype, padding):
    x = data_set(shape, dtype)
    indices = np.random.default_rng(1).integers(0, len(x), batch)
    compare(variant, x, indices, *statistics(shape[0]), draws(batch, padding))
    compare(variant, x, indices, None, None, draws(batch, padding, seed=2))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_geometry(data):
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 40)))
    batch, padding = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 9))
    x = data_set(shape, data.draw(st.sampled_from([np.uint8, np.float32])))
    indices = np.random.default_rng(1).integers(0, len(x), batch)
    moves = draws(batch, padding, data.draw(st.integers(0, 9))) if data.draw(st.booleans()) else None
    for variant in VARIANTS:
        compare(variant, x, indices, *statistics(shape[0]), moves, threads=data.draw(st.integers(1, 3)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_move_by_hand(variant):
    image = np.arange(1, 5, dtype=np.uint8).reshape(1, 1, 2, 2)  # 1 2 / 3 4
    for top, left, flip, expected in (
        (4, 4, False, [[1, 2], [3, 4]]),
        (4, 4, True, [[2, 1], [4, 3]]),
        (3, 5, False, [[0, 0], [2, 0]]),  # zeros from above and from the right
        (3, 5, True, [[0, 0], [0, 2]]),  # mirrored afterwards
        (0, 0, False, [[0, 0], [0, 0]]),
    ):
        moves = Moves(np.array([top]), np.array([left]), np.array([flip]), 4)
        with use_backend(variant):
            assert gather(image, np.zeros(1, np.int64), moves=moves)[0, :, :, 0].tolist() == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_zeros_around_an_image_are_normalised(variant):
    moves = Moves(np.array([0]), np.array([0]), np.array([False]), 4)
    numbers = np.array([3], np.float32), np.array([2], np.float32)
    with use_backend(variant):
        found = gather(np.full((1, 1, 2, 2), 9, np.uint8), np.zeros(1, np.int64), *numbers, moves)
    assert found.flatten().tolist() == [-1.5] * 4


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_mapped_file_is_read_as_it_is(variant, tmp_path):
    x = data_set((3, 8, 9), np.uint8)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    compare(variant, mapped, np.array([49, 0, 3]), *statistics(3))


IMAGES, VECTORS, FIRST = data_set((3, 6, 6), np.uint8), data_set((7,), np.float32), np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((IMAGES.astype(np.int32), FIRST), r"uint8 or float32 samples \[n, ...\], got int32"),
        ((IMAGES[:, :, ::2], FIRST), "contiguous uint8 or float32"),
        ((IMAGES, FIRST.astype(np.int32)), r"indices as contiguous int64 \(2,\), got int32"),
        ((IMAGES, np.array([0, 50])), "indices from 0 to 49, got 0 to 50"),
        ((IMAGES, np.array([-1, 0])), "indices from 0 to 49, got -1 to 0"),
        ((IMAGES, FIRST, statistics(3)[0]), "a mean and a std, or neither"),
        ((IMAGES, FIRST, *statistics(1)), r"expected 3 means of samples \(3, 6, 6\), got 1"),
        ((VECTORS, FIRST, *statistics(3)), r"expected 1 or 7 means of samples \(7,\), got 3"),
        ((VECTORS, FIRST, statistics(7)[0], statistics(1)[1]), r"std as contiguous float32 \(7,\)"),
        ((VECTORS, FIRST, None, None, draws(2, 4)), r"images \[n, C, H, W\] to move, got \(50, 7\)"),
        ((IMAGES, FIRST, None, None, draws(3, 4)), r"rows as contiguous int64 \(2,\), got int64 \(3,\)"),
        ((IMAGES, FIRST, None, None, draws(2, 4)._replace(padding=-1)), "padding from 0, got -1"),
        ((IMAGES, FIRST, None, None, draws(2, 4)._replace(columns=np.array([0, 9]))), "columns from 0 to 8"),
        ((IMAGES, FIRST, None, None, draws(2, 4)._replace(mirrored=FIRST)), "mirrored as contiguous bool"),
    ],
)
def test_bad_input_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        gather(*given)
