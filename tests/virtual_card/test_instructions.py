"""Single instructions against Python: edges of types, rounding, what lanes exchange, branches."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
import torch

from virtual_card import Fault

TEXT = """
.version 8.7
.target sm_89
.visible .entry one(.param .u64 one_0, .param .u64 one_1, .param .u64 one_2)
.reqntid 32
{{
    ld.param.b64 %rd1, [one_0];
    ld.param.b64 %rd2, [one_1];
    ld.param.b64 %rd3, [one_2];
    mov.u32 %r0, %tid.x;
    mad.wide.u32 %rd4, %r0, 8, %rd1;
    mad.wide.u32 %rd5, %r0, 8, %rd2;
    mad.wide.u32 %rd6, %r0, 8, %rd3;
    ld.global.b64 %x, [%rd4];
    ld.global.b64 %y, [%rd5];
    cvt.u32.u64 %a, %x;
    cvt.u32.u64 %b, %y;
    mov.b64 %out, 0;
    {code}
    st.global.b64 [%rd6], %out;
    ret;
}}
"""


@pytest.fixture
def run(card):
    """run(code, x, y): inputs in %x, %y, their low halves in %a, %b -> what it leaves in %out, as ints."""

    def ran(code, x, y=()):
        def place(numbers):
            bits = [int(n) % 2**64 for n in numbers]
            bits += [0] * (32 - len(bits))
            return torch.from_numpy(np.array(bits, np.uint64).view(np.int64)).to("cuda")

        given, out = (place(x), place(y)), torch.empty(32, dtype=torch.int64, device="cuda")
        card.launch(TEXT.format(code=code), (1,), [t.data_ptr() for t in (*given, out)], shared=0)
        return [n % 2**64 for n in out.tolist()][: max(len(x), len(y))]

    return ran


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def number(n):
    return struct.unpack("<f", struct.pack("<I", n & 0xFFFFFFFF))[0]


WIDE = "cvt.u64.u32 %out, %c;"
EDGES = [0, 1, 2, 7, 31, 32, 33, 63, 64, 2**31 - 1, 2**31, 2**32 - 1]


def signed(n, size=32):
    return n - 2**size if n >= 2 ** (size - 1) else n


PAIRS = [(x, y) for x in EDGES[:5] + EDGES[-3:] for y in (1, 3, 31, 2**32 - 1)]


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("add.s32 %c, %a, %b;", lambda x, y: x + y),
        ("sub.s32 %c, %a, %b;", lambda x, y: x - y),
        ("mul.lo.s32 %c, %a, %b;", lambda x, y: x * y),
        ("mul.hi.u32 %c, %a, %b;", lambda x, y: x * y >> 32),
        ("mul.hi.s32 %c, %a, %b;", lambda x, y: signed(x) * signed(y) >> 32),
        ("mad.lo.s32 %c, %a, %b, 5;", lambda x, y: x * y + 5),
        ("div.u32 %c, %a, %b;", lambda x, y: x // y),
        ("div.s32 %c, %a, %b;", lambda x, y: math.trunc(Fraction(signed(x), signed(y)))),
        (
            "rem.s32 %c, %a, %b;",
            lambda x, y: signed(x) - signed(y) * math.trunc(Fraction(signed(x), signed(y))),
        ),
        ("min.s32 %c, %a, %b;", lambda x, y: min(signed(x), signed(y))),
        ("max.u32 %c, %a, %b;", max),
        ("and.b32 %c, %a, %b;", lambda x, y: x & y),
        ("xor.b32 %c, %a, %b;", lambda x, y: x ^ y),
        ("not.b32 %c, %a;", lambda x, y: ~x),
        ("neg.s32 %c, %a;", lambda x, y: -x),
        ("popc.b32 %c, %a;", lambda x, y: x.bit_count()),
        ("clz.b32 %c, %a;", lambda x, y: 32 - x.bit_length()),
        ("brev.b32 %c, %a;", lambda x, y: int(f"{x:032b}"[::-1], 2)),
        ("bfe.u32 %c, %a, 3, 7;", lambda x, y: x >> 3 & 127),
        ("bfe.s32 %c, %a, 28, 4;", lambda x, y: signed(x >> 28, 4)),
        ("bfi.b32 %c, %a, %b, 8, 8;", lambda x, y: y & ~0xFF00 | (x & 0xFF) << 8),
        ("prmt.b32 %c, %a, %b, 0x5410;", lambda x, y: x & 0xFFFF | (y & 0xFFFF) << 16),
        ("lop3.b32 %c, %a, %b, 0, 0xC0;", lambda x, y: x & y),
        ("shf.l.wrap.b32 %c, %a, %b, 8;", lambda x, y: y << 8 | x >> 24),
        ("setp.lt.s32 %p, %a, %b; selp.b32 %c, 1, 0, %p;", lambda x, y: signed(x) < signed(y)),
        ("setp.hi.u32 %p, %a, %b; selp.b32 %c, 1, 0, %p;", lambda x, y: x > y),
        ("mov.b32 {%h, %l}, %a; mov.b32 %c, {%l, %h};", lambda x, y: x >> 16 | (x & 0xFFFF) << 16),
    ],
)
def test_integers(run, code, wanted):
    found = run(code + WIDE, *zip(*PAIRS, strict=True))
    assert found == [int(wanted(x, y)) % 2**32 for x, y in PAIRS]


@pytest.mark.parametrize("by", [0, 1, 31, 32, 40])
def test_shifts_beyond_the_width(run, by):
    assert run(f"shl.b32 %c, %a, {by};{WIDE}", EDGES) == [
        x << by & 2**32 - 1 if by < 32 else 0 for x in EDGES
    ]
    assert run(f"shr.u32 %c, %a, {by};{WIDE}", EDGES) == [x >> by for x in EDGES]
    assert run(f"shr.s32 %c, %a, {by};{WIDE}", EDGES) == [(signed(x) >> min(by, 31)) % 2**32 for x in EDGES]


def test_products_of_twice_the_width(run):
    found = run("mul.wide.s32 %out, %a, %b;", *zip(*PAIRS, strict=True))
    assert found == [signed(x) * signed(y) % 2**64 for x, y in PAIRS]
    found = run("mad.wide.u32 %out, %a, %b, %x;", *zip(*PAIRS, strict=True))
    assert found == [(x * y + x) % 2**64 for x, y in PAIRS]
    assert run("mul.hi.u64 %out, %x, %y;", [2**63, 3], [6, 5]) == [3, 0]


def test_fma_is_rounded_once(run):
    rng = np.random.default_rng(0)
    x, y, scale = (
        rng.standard_normal(32).astype(np.float32),
        rng.standard_normal(32).astype(np.float32),
        2.0**-20,
    )
    code = f"mul.f32 %d, %a, %b; neg.f32 %d, %d; fma.rn.f32 %c, %a, %b, %d;{WIDE}"
    found = run(code, [bits(v) for v in x], [bits(v) for v in y])
    for n, a, b in zip(found, map(float, x), map(float, y), strict=True):
        assert number(n) == float(np.float32(Fraction(a) * Fraction(b) - Fraction(float(np.float32(a * b)))))
    assert any(number(n) for n in found) and max(abs(number(n)) for n in found) < scale


@pytest.mark.parametrize(
    ("code", "x", "wanted"),
    [
        ("cvt.rzi.s32.f32 %c, %a;", [2.9, -2.9, 1e10, -1e10, math.nan], [2, -2, 2**31 - 1, -(2**31), 0]),
        ("cvt.rni.s32.f32 %c, %a;", [2.5, 3.5, -0.5], [2, 4, 0]),
        ("cvt.rzi.u32.f32 %c, %a;", [-1.0, 3e9, 1e20], [0, 3 * 10**9, 2**32 - 1]),
        ("max.f32 %c, %a, 0f3F800000;", [math.nan, 0.5, 2.0], [bits(1.0), bits(1.0), bits(2.0)]),
        ("setp.ltu.f32 %p, %a, 0f00000000; selp.b32 %c, 1, 0, %p;", [math.nan, -1.0, 1.0], [1, 1, 0]),
        ("setp.lt.f32 %p, %a, 0f00000000; selp.b32 %c, 1, 0, %p;", [math.nan, -1.0, 1.0], [0, 1, 0]),
        ("add.ftz.f32 %c, %a, 0f00000000;", [1e-40, 1e-38 * 2], [0, bits(1e-38 * 2)]),
        ("abs.f32 %c, %a;", [-1.5, -0.0], [bits(1.5), 0]),
        ("sqrt.rn.f32 %c, %a;", [2.0, 4.0], [bits(math.sqrt(2)), bits(2.0)]),
        ("ex2.approx.ftz.f32 %c, %a;", [0.0, -math.inf], [bits(1.0), 0]),
        ("cvt.rna.tf32.f32 %c, %a;", [1 + 2**-11, 1 + 2**-12], [bits(1 + 2**-10), bits(1.0)]),
    ],
)
def test_floats(run, code, x, wanted):
    assert run(code + WIDE, [bits(v) for v in x]) == [n % 2**32 for n in wanted]


def test_bf16_and_f16_round_to_even(run):
    x = [1.0, 1 + 2**-8, 1 + 3 * 2**-8, 3.0e38]
    halves = run(f"cvt.rn.bf16.f32 %h, %a; cvt.u32.u16 %c, %h;{WIDE}", [bits(v) for v in x])
    assert halves == torch.tensor(x).bfloat16().view(torch.int16).tolist()
    pair = run(f"cvt.rn.f16x2.f32 %c, %a, %b;{WIDE}", [bits(1.0)], [bits(-2.0)])
    assert pair == [0x3C00 << 16 | 0xC000]


@pytest.mark.parametrize(
    ("code", "source"),
    [
        ("shfl.sync.bfly.b32 %c, %a, 5, 31, -1;", lambda i: i ^ 5),
        ("shfl.sync.up.b32 %c, %a, 3, 0, -1;", lambda i: i - 3 if i >= 3 else i),
        ("shfl.sync.down.b32 %c, %a, 3, 31, -1;", lambda i: i + 3 if i + 3 < 32 else i),
        ("shfl.sync.idx.b32 %c, %a, 9, 31, -1;", lambda i: 9),
        ("shfl.sync.idx.b32 %c, %a, 1, 0x181F, -1;", lambda i: i // 8 * 8 + 1),
    ],
)
def test_lanes_exchange(run, code, source):
    assert run(code + WIDE, range(100, 132)) == [100 + source(i) for i in range(32)]


def test_votes_and_reductions(run):
    x = [3, 200, 7] * 10 + [1, 2]
    assert run(f"redux.sync.add.s32 %c, %a, -1;{WIDE}", x) == [sum(x)] * 32
    assert run(f"redux.sync.max.u32 %c, %a, -1;{WIDE}", x) == [200] * 32
    ballot = sum(1 << i for i, v in enumerate(x) if v > 5)
    code = f"setp.gt.s32 %p, %a, 5; vote.sync.ballot.b32 %c, %p, -1;{WIDE}"
    assert run(code, x) == [ballot] * 32


def test_lanes_that_part_meet_again(run):
    code = """mov.b32 %c, 0; setp.lt.s32 %p, %a, 10;
    @%p bra $small;
    add.s32 %c, %c, 100;
    bra.uni $both;
$small:
    add.s32 %c, %c, 1;
$both:
    shfl.sync.bfly.b32 %d, %c, 16, 31, -1;
    add.s32 %c, %c, %d;
"""
    found = run(code + WIDE, range(32))
    assert found == [101 if i < 10 or 16 <= i < 26 else 200 for i in range(32)]


def test_a_loop_of_each_lanes_own_length(run):
    code = """mov.b32 %c, 0; mov.b32 %i, 0;
$again:
    setp.ge.u32 %p, %i, %a;
    @%p bra $done;
    add.s32 %c, %c, %i;
    add.s32 %i, %i, 1;
    bra.uni $again;
$done:
"""
    assert run(code + WIDE, range(32)) == [i * (i - 1) // 2 for i in range(32)]


def test_a_load_keeps_its_sign(run):
    code = f"ld.global.s8 %c, [%rd4]; {WIDE}"
    assert run(code, [0x7F, 0x80, 0xFF]) == [0x7F, 2**32 - 128, 2**32 - 1]
    assert run("ld.global.u8 %h, [%rd4]; cvt.u64.u16 %out, %h;", [0x17F, 0x80, 0xFF]) == [0x7F, 0x80, 0xFF]


@pytest.mark.parametrize("barrier", ["bar.sync 1, 64;", "bar.arrive 0, 32;", "bar.red.popc.u32 %c, 0, %p;"])
def test_other_barriers_are_refused(run, barrier):
    with pytest.raises(NotImplementedError, match="does not know 'bar"):
        run(barrier, [1])


def test_a_quotient_by_zero_is_noise(run):
    with pytest.raises(
        Fault, match="^one: PTX line .* lane 1: stores in global memory a value that was never"
    ):
        run(f"div.u32 %c, %a, %b;{WIDE}", [1] * 32, [1, 0] + [1] * 30)
