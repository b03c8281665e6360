"""tl.dot on the virtual card: mma.sync, ldmatrix and cp.async, with the rounding of the real types."""

import re

import pytest
import torch
from helpers import randn

from virtual_card import Fault, planted

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def operands(kind):
    """A [2, 16, 160] and B [160, 32] on the card, and their product in float64."""
    a, b = (
        randn(2 * 16 * 160, 1).view(2, 16, 160).to(TYPES[kind]),
        randn(160 * 32, 2).view(160, 32).to(TYPES[kind]),
    )
    return a.to("cuda:0"), b.to("cuda:0"), a.double() @ b.double()


@pytest.mark.parametrize("kind", TYPES)
def test_a_pipelined_product(run, kind, ptx):
    a, b, wanted = operands(kind)
    c = torch.empty(2, 16, 32, device="cuda:0")
    counts = run(planted.DOT[kind], 2, a, b, c)
    error = ((c.cpu().double() - wanted).abs().max() / wanted.abs().max()).item()
    shape = {"fp32": "m16n8k8_tf32", "fp16": "m16n8k16_f16", "bf16": "m16n8k16_bf16"}[kind]
    tiles = 2 * (32 // 8) * 160 // (8 if kind == "fp32" else 16)  # programs x columns x depth
    assert counts[f"mma_{shape}"] == tiles
    assert "cp.async" in ptx(planted.DOT[kind]) and "ldmatrix" in ptx(planted.DOT[kind])
    if kind == "fp32":  # inputs cut to 10 bits of mantissa: seen, and bounded
        assert 1e-5 < error < 2e-3
    else:  # exact inputs, sums in float32
        assert error < 1e-6


def test_tf32_cuts_its_inputs(run):
    a, b = torch.zeros(1, 16, 160), torch.zeros(160, 32)
    a[0, 3, 5], b[5, 7] = 1 + 2**-10 + 2**-11 + 2**-20, 1.0
    c = torch.empty(1, 16, 32, device="cuda:0")
    run(planted.DOT["fp32"], 1, a.to("cuda:0"), b.to("cuda:0"), c)
    found = c.cpu()
    assert found[0, 3, 7].item() in (1 + 2**-10, 1 + 2**-9)  # cut, or rounded before
    assert found.count_nonzero() == 1


@pytest.mark.parametrize("kind", ["fp32", "fp16"])
def test_a_copy_that_nobody_waits_for(run, kind):
    def change(ptx):
        assert "cp.async.wait_group" in ptx
        return re.sub(r"cp\.async\.wait_group[^;]*;", "", ptx, count=1)

    a, b, _ = operands(kind)
    with pytest.raises(
        Fault, match=r"^dot_kernel: PTX line .*copy is still under way \(cp.async without a wait\)"
    ):
        run(planted.DOT[kind], 2, a, b, torch.empty(2, 16, 32, device="cuda:0"), change=change)


def test_a_wait_for_one_group_too_few(run):
    def change(ptx):
        found = re.search(r"cp\.async\.wait_group\s+(\S+);", ptx)
        return ptx[: found.start(1)] + str(int(found[1], 0) + 1) + ptx[found.end(1) :]

    a, b, _ = operands("fp16")
    with pytest.raises(Fault, match="copy is still under way"):
        run(planted.DOT["fp16"], 2, a, b, torch.empty(2, 16, 32, device="cuda:0"), change=change)


def test_the_barriers_of_the_pipeline(run, ptx):
    a, b, _ = operands("fp16")
    barriers = [found.span() for found in re.finditer(r"bar\.sync[^;]*;", ptx(planted.DOT["fp16"]))]
    assert barriers
    seen = 0
    for start, end in barriers:
        try:
            cut = lambda text, at=(start, end): text[: at[0]] + text[at[1] :]  # noqa: E731
            run(planted.DOT["fp16"], 2, a, b, torch.empty(2, 16, 32, device="cuda:0"), change=cut)
        except Fault as fault:
            assert "race" in str(fault) or "under way" in str(fault)
            seen += 1
    assert seen


def test_two_seeds_of_noise_give_the_same_bits(card, run):
    a, b, _ = operands("fp32")
    results = []
    for card.seed in (0, 1):
        c = torch.empty(2, 16, 32, device="cuda:0")
        run(planted.DOT["fp32"], 2, a, b, c)
        results.append(c.cpu())
    assert torch.equal(*results)
