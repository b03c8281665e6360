"""The ablations of the paper's figures: each is cifar10-small with what its name says, and nothing else."""

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


def test_what_descriptions_say_of_the_base():
    """They name its values: N = M = 4, delta_pr = 0.15, density 0.5."""
    base = config.load("cifar10-small")
    assert (base.topology.degree, base.topology.kind) == (4, "random")
    assert (base.da_dpfl.max_wait, base.da_dpfl.delta_pr, base.da_dpfl.density) == (4, 0.15, 0.5)
    assert base.data.classes_per_client == 2
