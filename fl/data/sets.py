"""load(name, root): the data sets by name, where their files belong, and what to do when they are not there.

    digits      1,797 handwritten digits, 8 x 8: inside the package
    cifar10     root/cifar-10-batches-bin/      cifar100    root/cifar-100-binary/
    ham10000    root/ham10000.npz               NAME        root/NAME.npz, any other name (npz.py)
    FILE.py:NAME, package.module:NAME           a function of the user's own (own.py)
    PATH        a name with a / in it, or that ends in .npz: that file, from the working directory

root is the argument, else the environment variable SPARSE_DATA, else ./data. Nothing is ever downloaded.
"""

import os
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from fl.config import code
from fl.config.source import is_path
from fl.data import cifar, memory, npz, own
from fl.data.dataset import Dataset, X, standardised
from fl.data.sources import from_given

_CIFAR_PAGE = "the CIFAR page of Alex Krizhevsky (www.cs.toronto.edu/~kriz/cifar.html)"
_HAM_PAGE = "Harvard Dataverse (dataset 'The HAM10000 dataset', doi:10.7910/DVN/DBW86T)"
BINARIES = {binary.name: binary for binary in (cifar.CIFAR10, cifar.CIFAR100)}
_CHUNK = 512


def as_dataset(given: Any, *, natural: bool = False) -> Dataset:
    """The data set that `given` is, or holds.

    given     a Dataset (as it is); (x, y) or (x, y, x_test, y_test) of arrays or tensors; a mapping with the
              arguments of `from_arrays`; a map-style torch Dataset, a split of Hugging Face's `datasets`, a
              mapping {"train": ..., "test": ...} of two of these; a name of a data set, or
              the path of an .npz file
    natural   groups are clients (from_arrays)

    >>> import numpy as np
    >>> as_dataset((np.zeros((10, 3)), np.arange(10) % 2))
    Dataset(arrays, 8 + 2 samples (3,), 2 classes)
    >>> as_dataset("digits")
    Dataset(digits, 1,438 + 359 images (1, 8, 8), 10 classes)
    """
    if isinstance(given, str | os.PathLike):
        return load(os.fspath(given), natural=natural)
    return from_given(given, natural=natural)


def load(name: str, root: str | Path | None = None, *, natural: bool = False) -> Dataset:
    """The data set of that name, or in the file of that path.

    `natural`: groups of an .npz file are clients (arrays.py). `adjusted` resizes images.

    >>> load("digits")
    Dataset(digits, 1,438 + 359 images (1, 8, 8), 10 classes)
    """
    folder = data_root(root)
    if code.reference(name) is not None:
        return own.from_code(name, natural=natural)
    if name == "digits":
        return npz.read(name, Path(__file__).with_name("digits.npz"))
    if name in BINARIES:
        return _cifar(BINARIES[name], folder)
    path = Path(name).expanduser() if is_path(name) else folder / f"{name}.npz"
    if not path.is_file():
        raise FileNotFoundError(_absent(name, path))
    return npz.read(path.stem, path, grouped=name == "ham10000", natural=natural)


def data_root(root: str | Path | None = None) -> Path:
    """Where data sets are looked for: the argument, else SPARSE_DATA, else ./data."""
    return Path(root if root is not None else os.environ.get("SPARSE_DATA") or "data").expanduser()


def adjusted(
    data: Dataset, *, size: int | None = None, normalise: bool = False, augment: bool | None = None
) -> Dataset:
    """`data` as a configuration wants it: resized, floats standardised, with crops and flips or without.

    >>> adjusted(load("digits"), size=16, augment=True)
    Dataset(digits, 1,438 + 359 images (1, 16, 16), 10 classes)
    """
    if size is not None:
        data = resized(data, size)
    if normalise and not data.mean:  # bytes have theirs
        data = standardised(data)
    return data if augment is None else replace(data, augment=augment)


def resized(data: Dataset, size: int) -> Dataset:
    """`data` with images of size x size (bilinear, antialiased where it shrinks), still bytes."""
    if data.train.x.dtype != np.uint8 or not data.is_image:
        given = f"{data.train.x.dtype} samples {data.shape}"
        raise ValueError(f"size: expected images of bytes to resize, got {given} of {data.name}")
    if size < 1:
        raise ValueError(f"expected a size of at least 1 pixel, got {size}")
    if data.shape[1:] == (size, size):
        return data
    train, test = (replace(part, x=_resize(part.x, size)) for part in (data.train, data.test))
    return standardised(replace(data, train=train, test=test))


def _resize(images: X, size: int) -> NDArray[np.uint8]:
    shape = (*images.shape[:2], size, size)
    memory.check(prod(shape), f"{len(images):,} images of {size} x {size} pixels")
    out = np.empty(shape, dtype=np.uint8)
    for start in range(0, len(images), _CHUNK):
        x = torch.from_numpy(images[start : start + _CHUNK].astype(np.float32))
        x = F.interpolate(x, (size, size), mode="bilinear", align_corners=False, antialias=True)
        out[start : start + _CHUNK] = x.round_().clamp_(0, 255).to(torch.uint8).numpy()
    return out


def _cifar(binary: cifar.Binary, root: Path) -> Dataset:
    missing = binary.missing(root)
    if missing:
        raise FileNotFoundError(
            f"{binary.name}: expected {missing[0]}, got no such file. Fetch {binary.archive} (the binary "
            f"version) from {_CIFAR_PAGE} and unpack it in {root}, so that {root / binary.folder} exists, or "
            f"set SPARSE_DATA to the directory that holds {binary.folder}."
        )
    return cifar.read(binary, root)


def _absent(name: str, path: Path) -> str:
    if is_path(name):
        return f"data.name: expected an .npz file, got {name}: there is no file {path.absolute()}"
    what = f"{name}: expected {path}, got no such file. "
    if name == "ham10000":
        return what + (
            f"Fetch the images and HAM10000_metadata from {_HAM_PAGE} and write them as one .npz with x, y, "
            "lesion_id and classes (README, 'Data'), or set SPARSE_DATA to the directory that holds it."
        )
    known = ", ".join(["digits", *BINARIES, "ham10000"])
    return (
        what + f"Known data sets: {known}; any other is a file NAME.npz with arrays x and y (README, 'Data')."
    )
