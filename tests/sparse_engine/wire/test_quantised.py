"""Numbers in b bits: by hand, unbiased, a contraction, every refusal."""

import struct

import numpy as np
import pytest
import torch
from helpers import randn

import sparse_engine as se
from sparse_engine.model.model import Entry
from sparse_engine.wire import quantised

BITS = list(quantised.BITS)


def state(values, rest=()):
    values, rest = torch.as_tensor(values, dtype=torch.float32), torch.as_tensor(rest, dtype=torch.float32)
    layout = se.Layout(("w",), ((1, len(values)),), (Entry("b", (len(rest),), torch.float32),))
    full = layout.bitmap_of({"w": torch.ones(1, len(values), dtype=torch.bool)})
    return se.Model(layout, full, values, rest, torch.empty(0, dtype=torch.int64))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def numbers(x):
    return torch.cat([x.values, x.rest])


def unpacked_slowly(blob, n, bits):
    """Scales and codes by the table of the format, a bit at a time."""
    blocks = -(-n // 256)
    scales = struct.unpack(f"<{blocks}f", blob[24 : 24 + 4 * blocks])
    whole = int.from_bytes(blob[24 + 4 * blocks :], "little")
    top = 2 ** (bits - 1) - 1
    return scales, [((whole >> (bits * i)) & (2**bits - 1)) - top for i in range(n)]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 255, 256, 257, 1000])
def test_round_trip_by_the_table(bits, n):
    x = state(randn(n) * 3, randn(5) if n else [])
    n = len(numbers(x))
    blob = quantised.encode(x, bits, generator())
    assert len(blob) == quantised.num_bytes(n, bits) == 24 + 4 * -(-n // 256) + bits * -(-n // 8)
    assert blob[:8] == b"SPFQ\x01" + bytes([bits, 0, 0]) and struct.unpack("<Q", blob[16:24]) == (n,)
    back = quantised.decode(blob, like=x)
    scales, codes = unpacked_slowly(blob, n, bits)
    assert numbers(back).tolist() == [
        np.float32(scales[i // 256]) * np.float32(c) for i, c in enumerate(codes)
    ]
    step = torch.tensor(scales).repeat_interleave(256)[:n]
    assert ((numbers(back) - numbers(x)).abs() <= step * (1 + 1e-5)).all()
    assert back.bitmap is x.bitmap and torch.equal(back.integers, x.integers)
    for i in range(-(-n // 256)):  # the largest number of a block is kept
        block = slice(256 * i, 256 * i + 256)
        most, kept = (numbers(model)[block].abs().max().item() for model in (x, back))
        assert kept == pytest.approx(most, rel=1e-6)


def test_by_hand():
    """3 bits: L = 3. Scale 2: 6 -> 3, -4 -> -2 and 0 -> 0 are exact, 1 goes to 0 or 2."""
    x = state([6.0, -4.0, 0.0, 1.0])
    seen = set()
    for seed in range(20):
        blob = quantised.encode(x, 3, generator(seed))
        assert len(blob) == 24 + 4 + 3
        assert quantised.decode(blob, like=x).values[:3].tolist() == [6, -4, 0]
        seen.add(quantised.decode(blob, like=x).values[3].item())
    assert seen == {0.0, 2.0}


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_unbiased_and_a_contraction(bits):
    x, draws = state(randn(500)), 400
    noise = generator(1)
    sent = torch.stack(
        [numbers(quantised.decode(quantised.encode(x, bits, noise), like=x)) for _ in range(draws)]
    ).double()
    exact, step = numbers(x).double(), numbers(x).abs().max().item() / quantised.levels(bits)
    assert ((sent.mean(0) - exact).abs() < 5 * step / 2 / draws**0.5).all()  # 5 sigma of a step's worst noise
    tau = quantised.damping(bits)
    norm = exact.square().sum()
    assert (sent - exact).square().sum(1).mean() <= (tau - 1) * norm
    assert (sent / tau - exact).square().sum(1).mean() <= (1 - 1 / tau) * norm * (1 + 1e-6)
    assert quantised.damping(8) < 1.005


def test_follows_the_generator():
    x = state(randn(300))
    one, two, other = (quantised.encode(x, 4, generator(seed)) for seed in (3, 3, 4))
    assert one == two != other


def test_nothing_and_next_to_nothing():
    for smallest in (0.0, 1e-45):
        x = state(torch.full((300,), smallest))
        assert not quantised.decode(quantised.encode(x, 8, generator()), like=x).values.any()


def damaged(blob, at, value, refresh=True):
    """`value` at a byte; with a checksum that fits, so that it is not what is found."""
    data = bytearray(blob)
    data[at : at + len(value)] = value
    if refresh:
        body = np.frombuffer(bytes(data[16:]), np.uint8)
        data[8:16] = quantised._checksum(bytes(data[:8]), body).to_bytes(8, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, b"SPFL", "quantised model"),
        (4, b"\x02", "version 1"),
        (5, b"\x09", "version 1"),
        (6, b"\x01", "version 1"),
        (16, b"\x0b", "expected 10 numbers"),
        (24, struct.pack("<f", float("nan")), "finite"),
        (24, struct.pack("<f", -1.0), "finite"),
        (24, struct.pack("<f", 3e38), "finite"),  # times 7 it is infinite
        (28, b"\xff", "codes up to 14"),
        (-1, b"\x10", "zeros"),  # after the tenth
    ],
)
def test_refusals(at, value, message):
    x = state(randn(10))
    blob = quantised.encode(x, 4, generator())
    assert len(blob) == 36
    with pytest.raises(se.wire.WireError, match=message):
        quantised.decode(damaged(blob, at % len(blob), value), like=x)


def test_refusals_of_length_and_damage():
    x = state(randn(10))
    blob = quantised.encode(x, 4, generator())
    for wrong in (blob[:-1], blob + b"\0", blob[:10], b""):
        with pytest.raises(se.wire.WireError, match="expected"):
            quantised.decode(wrong, like=x)
    for at in range(8, len(blob)):
        with pytest.raises(se.wire.WireError):
            quantised.decode(damaged(blob, at, bytes([blob[at] ^ 1]), refresh=False), like=x)
    with pytest.raises(se.wire.WireError, match="expected 11 numbers"):
        quantised.decode(blob, like=state(randn(11)))
    with pytest.raises(ValueError, match="from 2 to 8 bits"):
        quantised.encode(x, 9, generator())
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite"):
            quantised.encode(state([1.0, bad]), 4, generator())
