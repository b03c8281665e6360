"""sparse_engine.plan: which kernel runs, from where, and that the choice never changes a result."""

import json

import pytest
import torch
from helpers import random_bitmap

import sparse_engine as se
from sparse_engine.choice import clock as timer
from sparse_engine.choice import files, plan, rule
from sparse_engine.choice.plan import Plan, use_plan
from sparse_engine.choice.rule import Rule
from sparse_engine.nn.conv import SparseConv2d
from sparsefl.kernels import settings
from sparsefl.kernels import sparse_conv as sc

IMAGE = (8, 8, 16)


def conv(density=0.5, **how):
    return sc.Conv(random_bitmap([6 * 4 * 9], density), 6, 4, (3, 3), padding=(1, 1), **how)


def clock(seconds, seen=None):
    def run(_, direction, image, kernels):
        if seen is not None:
            seen.extend((direction, image, kernel) for kernel in kernels)
        return {kernel: seconds.get(kernel, 9.0) for kernel in kernels}

    return run


def test_the_built_in_rule_goes_by_density_and_size():
    choose = Plan().kernel
    assert choose(conv(1.0), "forward", 32, 32, 32) == "winograd"
    assert choose(conv(0.1), "forward", 32, 32, 32) == "sparse"
    assert choose(conv(0.4), "weight_gradient", 32, 32, 32) == "winograd"
    assert choose(conv(0.4), "weight_gradient", 4, 4, 8) == "sparse"  # too few tiles for its transforms
    assert choose(conv(1.0, stride=2), "forward", 32, 32, 32) == "dense"


def test_the_fastest_is_taken_once_measured_and_not_measured_again():
    seen = []
    made = Plan(clock=clock({"sparse": 3.0, "dense": 1.0, "winograd": 2.0}, seen))
    for _ in range(3):
        assert made.kernel(conv(0.1), "forward", *IMAGE) == "dense"
    every = sc.candidates(conv(0.1))
    assert len(seen) == len(every) and {s[2] for s in seen} == set(every)
    made.kernel(conv(0.1), "input_gradient", *IMAGE)
    assert len(seen) == 2 * len(every)


def test_a_gain_within_the_noise_does_not_overrule_the_rule():
    made = Plan(clock=clock({"sparse": 1.0, "dense": 0.97, "winograd": 2.0}))
    assert made.kernel(conv(0.1), "forward", *IMAGE) == "sparse"


def test_a_program_gets_the_fastest_of_those_that_it_can_call():
    made = Plan(clock=clock({"torch": 1.0, "dense": 2.0, "sparse": 3.0}))
    assert made.kernel(conv(0.1), "forward", *IMAGE) == "torch"
    assert made.kernel(conv(0.1), "forward", *IMAGE, native=True) == "dense"
    again = Plan(made.measured)  # as from a file
    assert again.choice(conv(0.1), "forward", IMAGE, native=True) == ("dense", True)
    assert again.choice(conv(0.1), "input_gradient", IMAGE) == ("sparse", False)


def test_a_steady_plan_takes_no_kernel_that_may_round_otherwise_on_more_threads():
    made = Plan(clock=clock({"torch": 1.0, "dense": 2.0, "sparse": 3.0}))
    with se.use_threads(1):
        made.kernel(conv(0.1), "forward", *IMAGE)
    with use_plan(made), se.steady_plan():
        assert plan.current().kernel(conv(0.1), "forward", *IMAGE) == "dense"


def test_density_and_threads_are_part_of_the_key():
    a = plan.key(conv(0.1), "forward", IMAGE)
    assert a != plan.key(conv(0.5), "forward", IMAGE)
    with se.use_threads(7):
        assert a != plan.key(conv(0.1), "forward", IMAGE)


def test_a_steady_plan_neither_measures_nor_depends_on_threads():
    slow_sparse = clock({"sparse": 3.0, "dense": 1.0, "winograd": 2.0})
    with se.use_threads(1):
        made = Plan(clock=slow_sparse)
        made.kernel(conv(0.1), "forward", *IMAGE)
    with use_plan(made), se.steady_plan(), se.use_threads(3):
        assert plan.current().kernel(conv(0.1), "forward", *IMAGE) == "dense"
        assert plan.current().kernel(conv(0.1), "input_gradient", *IMAGE) == "sparse"  # the rule


def test_measurements_are_kept_in_the_file_and_read_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SPARSE_PLAN", "measure")
    made = plan.from_environment()
    assert made.clock is timer.seconds and made.path == files.machine_file()
    made.clock = clock({"sparse": 3.0, "dense": 1.0, "winograd": 2.0})
    made.kernel(conv(0.1), "forward", *IMAGE)
    for choice in ("", str(files.machine_file())):
        monkeypatch.setenv("SPARSE_PLAN", choice)
        settings.current.cache_clear()
        again = plan.from_environment()
        assert again.kernel(conv(0.1), "forward", *IMAGE) == "dense" and again.clock is None
    monkeypatch.setenv("SPARSE_PLAN", "off")
    settings.current.cache_clear()
    assert plan.from_environment().kernel(conv(0.1), "forward", *IMAGE) == "sparse"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 9, "rule": "zen", "costs": {}, "kernels": {}}',
        '{"version": 2, "rule": "zen", "costs": {}, "kernels": {"a": "b"}}',
        '{"version": 2, "rule": "zen", "costs": {}, "kernels": {"a": ["sparse"]}}',
        '{"version": 2, "rule": "none such", "costs": {}, "kernels": {}}',
        '{"version": 2, "rule": "../plan", "costs": {}, "kernels": {}}',
        '{"version": 2, "rule": "zen", "costs": {"sparse avx2 forward conv": [1]}, "kernels": {}}',
        '{"version": 2, "rule": "tuned", "costs": {"sparse avx2 forward conv": [1]}, "kernels": {}}',
        '{"version": 2, "rule": "tuned", "costs": {"other avx2 forward conv": []}, "kernels": {}}',
    ],
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path, monkeypatch, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    monkeypatch.setenv("SPARSE_PLAN", str(path))
    with pytest.raises(ValueError, match="plan.json"):
        plan.from_environment()


def test_a_missing_file_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSE_PLAN", str(tmp_path / "none.json"))
    with pytest.raises(ValueError, match="none.json"):
        plan.from_environment()


def test_a_kernel_that_does_not_fit_the_layer_is_not_taken():
    layer = conv(0.1, stride=2)
    made = Plan({plan.key(layer, "forward", IMAGE): "winograd"})
    assert made.kernel(layer, "forward", *IMAGE) == "sparse"


def test_measure_times_a_real_layer():
    for direction in sc.DIRECTIONS:
        found = timer.seconds(conv(0.3), direction, IMAGE, ("winograd", "sparse"), repeats=1)
        assert [*found] == ["winograd", "sparse"] and all(0 < s < 1 for s in found.values())


@pytest.mark.parametrize("kernel", sc.KERNELS)
def test_every_kernel_gives_the_same_gradients(kernel):
    torch.manual_seed(0)
    net = se.sparsify(se.models.by_name("small_cnn", num_classes=4), density=0.4, seed=0)
    x = torch.randn(6, *_input(net))

    def gradients(choice):
        net.zero_grad()
        with use_plan(choice):
            net(x).square().sum().backward()
        return [p.grad.clone() for p in net.parameters()]

    class Only(Plan):
        def kernel(self, layer, *rest, native=False):
            return kernel if kernel in sc.candidates(layer) else "sparse"

    for found, expected in zip(gradients(Only()), gradients(Plan()), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())


def _input(net):
    first = next(m for m in net.modules() if isinstance(m, SparseConv2d))
    return first.pattern.shape[1], 32, 32


def test_the_written_file_is_plain_json(tmp_path):
    path = tmp_path / "deep" / "plan.json"
    files.write(path, Plan({"b": "dense:avx2", "a": "sparse"}, rule=rule.named("zen")).text())
    kernels = {"a": "sparse", "b": "dense:avx2"}
    assert json.loads(path.read_text()) == {"version": 2, "rule": "zen", "costs": {}, "kernels": kernels}
    again = plan.from_file(path)
    assert (again.measured, again.rule) == (kernels, rule.named("zen"))


def test_a_tuned_rule_is_kept_with_its_constants():
    costs = {f"sparse avx2 forward {kind}": (1.0, *[0.5] * 10) for kind in ("conv", "linear")}
    made = Plan(rule=Rule("tuned", costs))
    again = plan.from_text(made.text())
    assert again.rule.costs == costs and again.identity() == made.identity() != Plan().identity()
