"""Planted bugs: each is a fault that names the kernel, the PTX line, the program and the lane."""

import re

import pytest
import torch
from helpers import randn

from virtual_card import Fault, planted

WHERE = r"^{}: PTX line \d+ \(\w+.py:\d+\), program {}, warp \d+, lane \d+: "


def faults(name, sentence, program=r"\d+"):
    return pytest.raises(Fault, match=WHERE.format(name, program) + ".*" + sentence)


def on_card(x):
    return x.to("cuda:0")


# ---- bounds and alignment ----


def test_a_sound_copy_passes_and_is_counted(run):
    x = randn(300)
    y = torch.empty(300, device="cuda:0")
    counts = run(planted.COPY[0, True], 3, on_card(x), y, 300)
    assert torch.equal(y.cpu(), x)
    assert counts["load_bytes"] == counts["store_bytes"] == 1200 and counts["programs"] == 3
    assert counts["dram_load_bytes"] == counts["dram_store_bytes"] == 1216  # 38 sectors
    assert counts["load_sectors"] == 38 and counts["load_requests"] == 10


def test_an_off_by_one_is_out_of_bounds(run):
    with faults(
        "copy_kernel", r"reads 4 bytes out of bounds: 0 bytes past the end of float32 \[300\]", program=2
    ):
        run(planted.COPY[1, True], 3, on_card(randn(300)), on_card(randn(300)), 300)


def test_a_missing_mask_is_out_of_bounds(run):
    with faults("copy_kernel", r"reads 4 bytes out of bounds", program=2):
        run(planted.COPY[0, False], 3, on_card(randn(300)), on_card(randn(384)), 300)
    with faults(
        "copy_kernel", r"writes 4 bytes out of bounds: \d+ bytes past the end of float32 \[300\]", program=2
    ):
        run(planted.COPY[0, False], 3, on_card(randn(384)), on_card(randn(300)), 300)


def test_the_bounds_are_those_of_the_allocation(run):
    x = on_card(randn(301))
    run(planted.COPY[1, True], 3, x[:300], on_card(randn(300)), 300)  # a view: the next number is its own


def test_freed_memory_is_out_of_bounds(card, ptx):
    x, y = on_card(randn(128)), on_card(randn(128))
    address, other = x.data_ptr(), y.data_ptr()
    del x
    with faults("copy_kernel", "out of bounds"):
        card.launch(ptx(planted.COPY[0, True]), (1,), [address, other, 128], shared=0)


def test_shared_memory_has_an_end(run):
    def change(ptx):
        return re.sub(r"(st\.shared\S*\s*\[\s*%r\d+)[^\]]*\]", r"\1 + 4096]", ptx)

    with faults("sum_kernel", r"writes \d+ bytes out of bounds: at byte \d+ of \d+ of shared memory"):
        run(planted.SUM, 1, on_card(randn(512)), torch.empty(1, device="cuda:0"), change=change)


def test_a_vector_that_is_not_aligned_is_misaligned(run):
    x, y = on_card(randn(600)), on_card(randn(600))
    run(planted.ALIGNED, 1, x, y)
    assert torch.equal(y[:512].cpu(), x[:512].cpu())
    with faults("aligned_kernel", r"misaligned: reads 16 bytes at byte 4 of float32 \[600\]"):
        run(planted.ALIGNED, 1, x[1:], y)
    with faults("aligned_kernel", r"misaligned: writes 16 bytes at byte 8"):
        run(planted.ALIGNED, 1, x, y[2:])


# ---- barriers and races ----


def without_barrier(number):
    def change(ptx):
        at = [found.span() for found in re.finditer(r"bar\.sync[^;]*;", ptx)][number]
        return ptx[: at[0]] + ptx[at[1] :]

    return change


def test_a_sum_over_warps_passes(run):
    x = randn(2048)
    sums = torch.empty(4, device="cuda:0")
    counts = run(planted.SUM, 4, on_card(x), sums)
    assert torch.allclose(sums.cpu(), x.view(4, 512).sum(1), atol=1e-4)
    assert counts["barriers"] > 0 and counts["shared_wavefronts"] >= counts["shared_ideal"] > 0


def test_every_missing_barrier_is_a_race(run, ptx):
    barriers = len(re.findall(r"bar\.sync", ptx(planted.SUM)))
    assert barriers
    sums = torch.empty(4, device="cuda:0")
    for number in range(barriers):
        with faults(
            "sum_kernel", "race: (reads|writes) shared memory that another warp .* no barrier between"
        ):
            run(planted.SUM, 4, on_card(randn(2048)), sums, change=without_barrier(number))


@pytest.mark.parametrize("branch", ["@%early bra $skip;", "@%early ret;"])
def test_a_barrier_that_some_threads_do_not_reach(run, branch):
    def change(ptx):
        head = ".reg .pred %early; .reg .b32 %me; mov.u32 %me, %tid.x; setp.ge.u32 %early, %me, 96;"
        ptx = ptx.replace("\tld.param", f"{head}\n{branch}\nbar.sync 0;\n$skip:\n\tld.param", 1)
        assert branch in ptx
        return ptx

    with pytest.raises(
        Fault, match="^sum_kernel: PTX line .*divergent barrier: (threads of one|waits for ever)"
    ):
        run(planted.SUM, 1, on_card(randn(512)), torch.empty(1, device="cuda:0"), change=change)


def test_two_programs_that_write_one_place_are_a_race(run):
    run(planted.RACE, 1, on_card(randn(1)), torch.empty(1, device="cuda:0"))
    with faults("race_kernel", r"race: writes memory of float32 \[1\] that another warp or program"):
        run(planted.RACE, 2, on_card(randn(2)), torch.empty(1, device="cuda:0"))


def test_what_one_program_reads_and_another_writes_is_a_race(run):
    run(planted.NEIGHBOUR, 1, on_card(randn(2)))
    with faults("neighbour_kernel", "race: (writes|reads) memory of float32"):
        run(planted.NEIGHBOUR, 2, on_card(randn(3)))


def test_atomics_may_meet(run):
    x, total = torch.arange(1, 9, dtype=torch.int32), on_card(torch.zeros(1, dtype=torch.int32))
    before = torch.empty(8, dtype=torch.int32, device="cuda:0")
    counts = run(planted.COUNT, 8, on_card(x), before, total)
    assert total.item() == 36 and sorted(before.tolist())[0] == 0
    assert counts["atomic_requests"] == 8


# ---- values that nobody wrote ----


def test_memory_that_nobody_wrote(run):
    fresh = torch.empty(128, device="cuda:0")
    with faults("copy_kernel", r"stores in global memory a value that was never written"):
        run(planted.COPY[0, True], 1, fresh, on_card(randn(128)), 128)
    with pytest.raises(Fault, match=r"torch: add reads memory of float32 \[128\] that nobody wrote"):
        fresh + 1
    with pytest.raises(Fault, match="tolist reads memory"):
        fresh.tolist()
    fresh[:100] = 1
    run(planted.COPY[0, True], 1, fresh, on_card(randn(128)), 100)
    assert fresh[:100].sum().item() == 100


def test_noise_in_masked_lanes_may_be_computed_with_but_not_stored(run):
    def change(ptx):  # this version of Triton sets the registers to 0 first, others need not
        assert "0x0;" in ptx
        return re.sub(r"mov\.[bu]32 %r\d+, 0x0;", "", ptx)

    x, y = on_card(randn(100)), on_card(randn(128))
    run(planted.HOLE[100], 1, x, y, 100, change=change)
    with faults("hole_kernel", r"stores in global memory a value that was never written \(%r\d+\)"):
        run(planted.HOLE[101], 1, x, y, 100, change=change)


def test_shared_memory_that_nobody_wrote(run):
    def change(ptx):
        at = re.search(r"(@%p\d+ )?st\.shared[^;]*;", ptx).span()
        return ptx[: at[0]] + ptx[at[1] :]

    with faults("sum_kernel", "a value that was never written"):
        run(planted.SUM, 1, on_card(randn(512)), torch.empty(1, device="cuda:0"), change=change)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ("add.s64 %addr, %addr, %never;\nld.global.b32 %got, [%addr];", "takes as an address a value"),
        ("setp.eq.s64 %cond, %never, 0;\n@%cond mov.b32 %got, 0;", "depends on a value"),
        ("setp.eq.s64 %cond, %never, 0;\n@%cond bra $done;\n$done:", "depends on a value"),
    ],
)
def test_a_register_that_nobody_wrote(run, bad, sentence):
    def change(ptx):
        declared = ".reg .b64 %addr, %never; .reg .b32 %got; .reg .pred %cond;\nmov.u64 %addr, 0;\n"
        return ptx.replace("\tret;", f"{declared}{bad}\nret;")

    with pytest.raises(Fault, match=f"^race_kernel: PTX line .*{sentence} that was never written"):
        run(planted.RACE, 1, on_card(randn(1)), torch.empty(1, device="cuda:0"), change=change)


def test_an_unknown_instruction_is_no_silence(run):
    with pytest.raises(NotImplementedError, match="does not know 'tcgen05.mma %r1'"):
        bad = lambda ptx: ptx.replace("\tret;", "tcgen05.mma %r1;\nret;")  # noqa: E731
        run(planted.RACE, 1, on_card(randn(1)), torch.empty(1, device="cuda:0"), change=bad)
