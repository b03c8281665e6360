"""Copies of rare classes: how many, that they are of the training part alone, and those of HAM10000."""

from pathlib import Path

import numpy as np
import pytest

from fl import config
from fl.config import ConfigError
from fl.data import load, partition
from fl.data.oversample import with_copies
from fl.run import setup


def test_by_hand():
    labels = np.array([0, 1, 0, 2, 0])
    assert with_copies(labels, 3, [1, 3, 2]).tolist() == [0, 1, 1, 1, 2, 3, 3, 4]
    assert with_copies(labels, 3, None).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("copies", [[1, 2], [1, 2, 0], []])
def test_refusals(copies):
    with pytest.raises(ValueError, match="expected copies"):
        with_copies(np.array([0, 1, 2]), 3, copies)


@pytest.fixture
def lesions(tmp_path):
    """200 images of 100 lesions, the second class rare. An image shows its number."""
    number = np.arange(200, dtype=np.uint8)
    x = np.broadcast_to(number[:, None, None, None], (200, 4, 4, 3))
    y = (number // 2 % 10 == 0).astype(np.int64)
    np.savez(tmp_path / "ham10000.npz", x=x, y=y, classes=["nv", "df"], lesion_id=number // 2)
    return load("ham10000", tmp_path)


@pytest.mark.parametrize("kind", ["dirichlet", "pathological", "iid"])
def test_no_copy_crosses_into_the_test_part(lesions, kind):
    """Lesions are split first: no client tests on an image, or a sibling of one, that anybody trains on."""
    options = {"alpha": 5.0, "classes_per_client": 1, "seed": 3}
    plain, copied = (partition(lesions, 4, kind, copies=copies, **options) for copies in (None, [1, 9]))
    trained, tested = (
        {int(images[i, 0, 0, 0]) // 2 for i in samples.indices}
        for images, samples in ((lesions.train.x, copied.train), (lesions.test.x, copied.test))
    )
    assert trained and tested and not trained & tested
    assert copied.train_counts.sum() > plain.train_counts.sum()
    rare = np.bincount(lesions.train.labels[copied.train.indices])
    assert rare.tolist() == copied.train_counts.sum(0).tolist()
    assert abs(rare[0] - rare[1]) < 0.2 * rare[0] and len(np.unique(copied.test.indices)) > 10


def test_without_copies_nothing_changes(lesions):
    a, b = partition(lesions, 4, seed=1), partition(lesions, 4, seed=1, copies=[1, 1])
    assert np.array_equal(a.train.indices, b.train.indices)
    assert np.array_equal(a.test.indices, b.test.indices)


def test_a_run_with_copies(lesions, tmp_path):
    changes = [f"data.root={tmp_path}", "data.name=ham10000", "model.name=mlp", "model.width=none"]
    cfg = config.load("demo", [*changes, "num_clients=4", "data.copies=[1, 9]", "data.partition=iid"])
    assert config.loads(config.dumps(cfg)) == cfg
    parts = setup.prepare(cfg).partition
    assert len(parts.train.of(0)) == np.bincount(lesions.train.labels) @ [1, 9] // 4
    with pytest.raises(ConfigError, match="data: expected copies from 1 on for each of 2 classes"):
        setup.prepare(config.changed(cfg, ["data.copies=[1, 2, 3]"]))
    with pytest.raises(ConfigError, match="data.copies"):
        config.changed(cfg, ["data.copies=[0, 1]"])


def test_the_preset_has_the_papers_samples():
    """About 640 per client (650 of ours); algorithms.md 6: rho of DFedSAM."""
    cfg = config.load("ham10000")
    stock = np.array([262, 411, 879, 92, 890, 5364, 114])  # training part: akiec bcc bkl df mel nv vasc
    assert stock @ cfg.data.copies // cfg.num_clients == 650 and "650 images per client" in cfg.description
    assert cfg.dfedsam.rho == 0.2 and config.load("cifar10").dfedsam.rho == 0.01
    for path in (Path(config.__file__).parent / "presets").glob("*.toml"):
        other = config.load(path.stem)
        assert other.data.name != "ham10000" or other.dfedsam.rho == 0.2
