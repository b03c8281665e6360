"""The ablations of the paper's figures: each is cifar10-small with what its name says, and nothing else."""

import tomllib
from pathlib import Path

import pytest

from fl import config

NAMED = {"name", "description"}
CHANGES = {
    "m-2": {"topology.degree": 2, "da_dpfl.max_wait": 2},
    "m-8": {"topology.degree": 8, "da_dpfl.max_wait": 8},
    "n-0": {"da_dpfl.max_wait": 0},
    "n-2": {"da_dpfl.max_wait": 2},
    "delta-early": {"da_dpfl.delta_pr": 0.3},
    "delta-late": {"da_dpfl.delta_pr": 0.08},
    "delta-none": {"da_dpfl.target_sparsity": 0.5},
    "topology-ring": {"topology.kind": "ring"},
    "topology-full": {"topology.kind": "full"},
    "partition-pat": {"data.partition": "pathological"},
}


def flat(tree, path=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{path}{key}.")
        else:
            yield path + key, value


def test_every_ablation_is_tested():
    found = {name.removeprefix("ablation-") for name in config.presets() if name.startswith("ablation-")}
    assert found == set(CHANGES)


@pytest.mark.parametrize("name", CHANGES)
def test_an_ablation_changes_one_thing(name):
    base = dict(flat(config.load("cifar10-small").model_dump()))
    other = dict(flat(config.load(f"ablation-{name}").model_dump()))
    assert {key: other[key] for key in other if other[key] != base[key] and key not in NAMED} == CHANGES[name]


def test_paper_and_authors_presets_choose_the_same_things():
    """Each sets its whole column of the table in docs/paper.md; the two agree on `grow` alone."""
    folder = Path(config.__file__).parent / "presets"
    found = [tomllib.loads((folder / f"{name}.toml").read_text()) for name in ("paper-text", "authors-code")]
    paper, code = (dict(flat({"da_dpfl": one["da_dpfl"]})) for one in found)
    assert paper.keys() == code.keys()
    assert [key for key in paper if paper[key] == code[key]] == ["da_dpfl.grow"]
    batches = config.load("authors-code")
    assert batches.settings.grow_batches == -(-500 // batches.training.batch_size)  # of 500 images: an epoch
    table = (folder.parents[2] / "docs" / "paper.md").read_text()
    for key in paper:
        assert key.split(".")[-1] in table.partition("\n## ")[0], key


def test_what_descriptions_say_of_the_base():
    """They name its values: N = M = 4, delta_pr = 0.15, density 0.5."""
    base = config.load("cifar10-small")
    assert (base.topology.degree, base.topology.kind) == (4, "random")
    assert (base.da_dpfl.max_wait, base.da_dpfl.delta_pr, base.da_dpfl.density) == (4, 0.15, 0.5)
    assert base.data.classes_per_client == 2
