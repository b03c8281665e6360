"""Messages: what is written comes back, old ones stay readable, anything else is refused with its reason."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fuzz_wire import originals
from fuzz_wire import run as fuzz
from helpers import random_bitmap
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import HEADER, LAYOUT, forged, repaired, same, sections, state_of

import sparse_engine as se
from sparse_engine.model.model import Entry, Layout, Model
from sparse_engine.wire import masks as mask_codecs
from sparse_engine.wire import message as wire
from sparse_engine.wire.header import MASKS, VALUES, WireError
from sparse_engine.wire.message import Residual
from sparsefl.kernels import mask_code

PINNED = Path(__file__).parents[2] / "data" / "wire_v1.json"
RANDOM_SIZES = st.lists(st.integers(0, 150), min_size=0, max_size=4)


def refused(reason, blob, like=LAYOUT, known=None, **options):
    with pytest.raises(WireError, match=reason):
        wire.decode(blob, like, known, **options)


# What is written comes back


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("mask", ["bitmap", "entropy", "difference"])
def test_fp32_is_exact(mask, pack):
    state, known = state_of(), state_of(1)
    blob = wire.encode(state, known=known, mask=mask, pack=pack)
    header = wire.inspect(blob)
    assert (header.mask, header.values, header.packed) == (mask, "fp32", pack)
    assert same(wire.decode(blob, state, known), state)
    assert same(wire.decode(blob, LAYOUT, known.bitmap), state)


@given(
    RANDOM_SIZES,
    st.sampled_from([0.0, 0.01, 0.2, 0.5, 0.99, 1.0]),
    st.sampled_from([None, 0.0, 0.3, 1.0]),
    st.booleans(),
    st.integers(0, 2**31),
)
@settings(max_examples=150, deadline=None)
def test_any_mask_and_any_numbers_come_back(sizes, density, known_density, pack, seed):
    draw = np.random.default_rng(seed)
    layout = Layout(tuple(f"w{i}" for i in range(len(sizes))), tuple((n,) for n in sizes))
    bitmap = random_bitmap(sizes, density, seed)
    bits = draw.integers(0, 2**32, bitmap.nnz, dtype=np.uint32)  # any float but nan and inf
    values = torch.from_numpy((bits & ~np.uint32(1 << 30)).view(np.float32))
    state = Model(layout, bitmap, values, torch.empty(0), torch.empty(0, dtype=torch.int64))
    known = None if known_density is None else random_bitmap(sizes, known_density, seed + 1)
    blob = wire.encode(state, known=known, pack=pack)
    back = wire.decode(blob, layout, known)
    assert same(replace(back, values=_bits(back)), replace(state, values=_bits(state)))  # -0.0 stays -0.0
    assert len(blob) <= wire.max_bytes(layout)
    for codec in mask_codecs.sizes(bitmap, known):
        assert len(blob) <= len(wire.encode(state, known=known, pack=pack, mask=codec))


def _bits(state):
    """Such that equal means the same bits; no NaN comes out."""
    return state.values.view(torch.int32).to(torch.float32)


@pytest.mark.parametrize("ones", [0, 1, 129, 130])
def test_one_bit_and_one_missing(ones):
    layout = Layout(("w",), ((10, 13),))
    for at in (0, 63, 64, 129):
        mask = torch.zeros(130, dtype=torch.bool)
        mask[torch.arange(at, at + ones) % 130] = True
        bitmap = layout.bitmap_of({"w": mask.view(10, 13)})
        state = Model(layout, bitmap, torch.ones(ones), torch.empty(0), torch.empty(0, dtype=torch.int64))
        for codec in ("bitmap", "entropy"):
            assert same(wire.decode(wire.encode(state, mask=codec), layout), state)


def test_a_network_and_back(toy):
    net = toy(1)
    shapes = {name: p.shape for name, p in net.named_parameters() if p.dim() > 1 and "shortcut" not in name}
    state = se.compress(net, se.erk_masks(shapes, density=0.3, seed=0), exempt=["shortcut*"])
    assert same(se.wire.decode(se.wire.encode(state), like=state), state)


@pytest.mark.parametrize("values", ["bf16", "fp16"])
def test_half_precision_is_that_of_torch(values):
    state, dtype = state_of(), {"bf16": torch.bfloat16, "fp16": torch.float16}[values]
    back = wire.decode(wire.encode(state, values=values), state)
    assert back.values.equal(state.values.to(dtype).float()) and back.bitmap.words.equal(state.bitmap.words)
    ours, theirs = back.rest_tensors(), state.rest_tensors()
    assert ours["shortcut.weight"].equal(theirs["shortcut.weight"].to(dtype).float())
    assert all(ours[name].equal(theirs[name]) for name in ("conv.bias", "norm.weight", "steps"))


def test_eight_bits_are_off_by_half_a_step():
    state = state_of()
    back = wire.decode(wire.encode(state, values="q8"), state)
    sent = torch.cat([state.values, state.rest_tensors()["shortcut.weight"].view(-1)])
    got = torch.cat([back.values, back.rest_tensors()["shortcut.weight"].view(-1)])
    for block, ours in zip(sent.split(256), got.split(256), strict=True):
        assert (block - ours).abs().max() <= block.abs().max() / 127 / 2 * 1.0001
    assert back.rest_tensors()["conv.bias"].equal(state.rest_tensors()["conv.bias"])


def test_sender_and_round_travel():
    header = wire.inspect(wire.encode(state_of(), sender=2**32 - 1, round=7))
    assert (header.sender, header.round) == (2**32 - 1, 7)
    assert wire.decode(wire.encode(state_of(), sender=4, round=7), LAYOUT, sender=4, round=7)


def test_what_comes_out_is_the_receivers_own():
    state = state_of()
    blob = bytearray(wire.encode(state, pack=False))
    back = wire.decode(blob, state)
    blob[:] = bytes(len(blob))
    assert same(back, state)
    back.values.zero_(), back.rest.zero_()
    assert state.values.any() and state.rest.any()


def test_any_buffer_is_a_message():
    blob = wire.encode(state_of())
    shifted = bytearray(b"x" + blob)
    for other in (bytearray(blob), memoryview(blob), np.frombuffer(blob, np.uint8), memoryview(shifted)[1:]):
        assert same(wire.decode(other, LAYOUT), state_of())


# Sizes


def test_header_by_the_byte_table():
    """Read by hand, as the table in the docstring says."""
    state, known = state_of(), state_of(1)
    blob = wire.encode(state, sender=3, round=5, known=known, mask="difference", pack=False)
    magic, version, mask, values = struct.unpack_from("<4sHBB", blob)
    assert (magic, version, mask, values) == (b"SPFL", 1, 2, 0)
    _, fingerprint, digest, sender, round, *sizes = struct.unpack_from("<QQQIIQQQ", blob, 8)
    assert (sender, round) == (3, 5) and fingerprint and digest
    assert sum(sizes) + 64 == len(blob)
    counts = np.frombuffer(blob, "<u4", 8, 64)
    old, new = (np.unpackbits(s.bitmap.words.numpy().view(np.uint8)) for s in (known, state))
    assert counts[:4].sum() == (old & ~new & 1).sum() and counts[4:].sum() == (new & ~old & 1).sum()
    code = mask_code.encode(state.bitmap, known.bitmap).tobytes()
    assert blob[64 + 32 : 64 + sizes[0]] == code
    exempt = state.rest_tensors()["shortcut.weight"].numpy().tobytes()
    assert blob[64 + sizes[0] :][: sizes[1]] == state.values.numpy().tobytes() + exempt
    others = [state.rest_tensors()[name].numpy().tobytes() for name in ("conv.bias", "norm.weight", "steps")]
    assert blob[-sizes[2] :] == b"".join(others)


def test_sizes_are_reported():
    blob = wire.encode(state_of(), mask="bitmap", pack=False)
    n = state_of().bitmap.nnz
    assert wire.inspect(blob).sizes == {
        "header": 64,
        "mask": 4 * 4 + 184,  # 135 and 1320 bits in bytes, to a multiple of 4; full and empty ones: nothing
        "values": 4 * (n + 20),
        "rest": 4 * 8 + 8,
    }
    assert wire.inspect(blob).nbytes == len(blob)


def test_full_layers_cost_no_bits():
    layout = Layout(("a", "b"), ((100, 100), (70, 30)))
    bitmap = layout.bitmap_of({"a": torch.ones(100, 100, dtype=torch.bool), "b": torch.zeros(70, 30) > 0})
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    state = Model(layout, bitmap, values, torch.empty(0), torch.empty(0, dtype=torch.int64))
    assert wire.inspect(wire.encode(state)).mask_bytes == 8
    assert same(wire.decode(wire.encode(state), layout), state)


def test_close_to_the_bound(random_state):
    """Within 2 % of 4 byte a value + n H(density) bits, at a size where headers do not matter."""
    for density in (0.5, 0.35, 0.2, 0.1, 0.05):
        state = random_state(((64, 64, 3, 3), (128, 64, 3, 3)), density)
        n = np.array(state.layout.segments.sizes)
        p = state.bitmap.counts.numpy() / n
        bound = (
            4 * (state.bitmap.nnz + state.rest.numel())
            - (n * (p * np.log2(p) + (1 - p) * np.log2(1 - p))).sum() / 8
        )
        assert bound < len(wire.encode(state, pack=False)) < 1.001 * bound + 128
        assert len(wire.encode(state)) < 0.87 * bound  # exponents are not random


def test_the_shortest_codec_is_chosen():
    def chosen(state, known=None):
        return wire.inspect(wire.encode(state, known=known)).mask

    layout = Layout(("w",), ((100, 100),))

    def state(bitmap):
        return Model(
            layout, bitmap, torch.zeros(bitmap.nnz), torch.empty(0), torch.empty(0, dtype=torch.int64)
        )

    half, tenth = random_bitmap((10_000,), 0.5), random_bitmap((10_000,), 0.1, seed=5)
    near = layout.bitmap(half.words ^ random_bitmap((10_000,), 0.01, seed=3).words)
    assert chosen(state(half)) == "bitmap"
    assert chosen(state(tenth)) == "entropy"
    assert chosen(state(tenth), half) == "entropy"  # another mask is no help, and its counts cost
    assert chosen(state(near), half) == "difference"
    assert chosen(state(half), random_bitmap((10_000,), 0.5)) == "known"


def test_into_a_buffer():
    state = state_of()
    buffer = bytearray(wire.max_bytes(state))
    for options in ({}, {"values": "bf16"}, {"known": state_of(1), "sender": 9}, {"pack": False}):
        n = wire.encode_into(buffer, state, **options)
        assert bytes(buffer[:n]) == wire.encode(state, **options)
    array = np.zeros(wire.max_bytes(LAYOUT, "q8"), np.uint8)
    assert array[: wire.encode_into(array, state, values="q8")].tobytes() == wire.encode(state, values="q8")


def test_a_buffer_that_is_too_small_stays_as_it_was():
    state, residual = state_of(), Residual()
    n = len(wire.encode(state))
    buffer = bytearray(n - 1)
    with pytest.raises(ValueError, match=f"at least {n} bytes, got {n - 1}"):
        wire.encode_into(buffer, state, residual=residual)
    with pytest.raises(ValueError, match="read-only"):
        wire.encode_into(bytes(n), state, residual=residual)
    assert not any(buffer) and residual.state is None


# What messages lost


def test_what_a_message_lost_comes_with_the_next():
    state, residual = state_of(), Residual()
    sums = torch.zeros_like(state.values)
    for t in range(1, 21):
        sums += wire.decode(wire.encode(state, values="q8", residual=residual), state).values
        error = (sums / t - state.values).abs().max()
    alone = (wire.decode(wire.encode(state, values="q8"), state).values - state.values).abs().max()
    assert error < alone / 10  # what was never received is still in the residual, and nothing else is
    assert torch.allclose(sums + residual.state.values, 20 * state.values, atol=1e-5)
    exempt = residual.state.rest_tensors()
    assert exempt["shortcut.weight"].any() and not exempt["conv.bias"].any()


def test_a_residual_follows_the_mask():
    first, second, residual = state_of(), state_of(1), Residual()
    wire.encode(first, values="q8", residual=residual)
    lost = residual.state.with_pattern(second.bitmap).values
    back = wire.decode(wire.encode(second, values="q8", residual=residual), second)
    assert torch.allclose(back.values + residual.state.values, second.values + lost, atol=1e-6)
    assert residual.state.bitmap.words.equal(second.bitmap.words)


def test_nothing_is_lost_in_fp32():
    residual = Residual()
    wire.encode(state_of(), residual=residual)
    assert not residual.state.values.any() and not residual.state.rest.any()


# Old messages


PINS = [
    *({"mask": mask, "values": "fp32", "pack": False} for mask in MASKS),
    *({"mask": "entropy", "values": values, "pack": True} for values in VALUES),
]


def pinned():
    """{name: message as version 1 wrote it}"""
    return {name: bytes.fromhex("".join(lines)) for name, lines in json.loads(PINNED.read_text()).items()}


def test_version_1_is_what_it_was():
    """If this fails, the format has changed: that needs a new version, and the old one stays readable."""
    written = {"-".join(map(str, how.values())): blob for blob, how in originals() if how in PINS}
    assert pinned() == written


@pytest.mark.parametrize("values", VALUES)
def test_version_1_stays_readable(values):
    known = state_of(1)
    for name, blob in pinned().items():
        if name.split("-")[1] == values:
            state = state_of(1) if name.startswith("known") else state_of()
            back = wire.decode(blob, LAYOUT, known, sender=3, round=5)
            assert back.bitmap.words.equal(state.bitmap.words) and back.integers.equal(state.integers)
            assert torch.allclose(back.values, state.values, atol={"fp32": 0, "q16": 1e-4}.get(values, 4e-3))


# Refusals


@pytest.fixture
def blob():
    return wire.encode(state_of(), sender=3, round=5, mask="bitmap", pack=False)


def u8(number):
    return number.to_bytes(8, "little")


def test_refuses_what_is_short(blob):
    for n in range(HEADER):
        refused(f"at least the 64 bytes of a header, got {n}", blob[:n])
    for n in range(HEADER, len(blob)):
        refused(f"expected {len(blob)} bytes, as the header says, got {n}", blob[:n])


def test_refuses_what_is_long(blob):
    refused("bytes, as the header says", blob + b"\0")
    refused("bytes, as the header says", blob + blob)
    refused("bytes of rest, got 41", forged(blob, rest=sections(blob)[2] + b"\0"))


def test_refuses_another_magic(blob):
    refused("expected a message, which starts with b'SPFL'", b"PK\3\4" + blob[4:])


def test_refuses_another_version(blob):
    refused("expected a message of version 1, got 2", forged(blob, header={4: b"\2\0"}))
    refused("expected a message of version 1, got 0", forged(blob, header={4: b"\0\0"}))


def test_refuses_unknown_codecs(blob):
    refused("expected a mask codec below 4, got 4", forged(blob, header={6: b"\4"}))
    refused("expected a value codec below 5, got 5", forged(blob, header={7: b"\5"}))
    refused("expected a value codec below 5, got 6", forged(blob, header={7: b"\x86"}))


def test_refuses_damage(blob):
    for bit in range(0, 8 * len(blob), 7):
        damaged = bytearray(blob)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            wire.decode(damaged, LAYOUT)
        with pytest.raises(WireError):
            wire.inspect(damaged)
    damaged = blob[:-1] + bytes([blob[-1] ^ 1])
    refused("expected the checksum [0-9a-f]{16}, got [0-9a-f]{16}: it is damaged", damaged)


def test_refuses_sections_that_overlap_or_leave_a_gap(blob):
    mask, values, rest = (len(section) for section in sections(blob))
    refused("bytes, as the header says", forged(blob, header={40: u8(mask + 4)}))
    refused("bytes, as the header says", forged(blob, header={48: u8(values - 4)}))
    refused("bytes, as the header says", forged(blob, header={56: u8(rest - 8)}))
    refused("bytes of values", forged(blob, header={48: u8(values - 4), 56: u8(rest + 4)}))
    refused("bytes of bits", forged(blob, mask=sections(blob)[0] + b"\0" * 4))


def test_refuses_a_section_twice(blob):
    mask, values, rest = sections(blob)
    refused("bytes, as the header says", repaired(blob[:HEADER] + mask + values + values + rest))
    refused("bytes of values", forged(blob, values=values + values))
    refused("bytes of bits", forged(blob, mask=mask + mask))
    refused("bytes of rest", forged(blob, rest=rest + rest))


@pytest.mark.parametrize("at", [40, 48, 56])
def test_huge_sizes_cost_nothing(blob, at):
    for size in (2**40, 2**63, 2**64 - 1, 2**64 - len(blob)):
        refused("bytes, as the header says", forged(blob, header={at: u8(size)}))


def test_refuses_another_model(blob):
    names, shapes, rest = LAYOUT.names, LAYOUT.shapes, LAYOUT.rest
    others = [
        Layout(("other", *names[1:]), shapes, rest),
        Layout(names, ((5, 3, 9), *shapes[1:]), rest),
        Layout(names, shapes, (Entry("conv.bias", (5,), torch.float16), *rest[1:])),
        Layout(names, shapes, (*rest[1:], rest[0])),
        Layout((names[1], names[0], *names[2:]), (shapes[1], shapes[0], *shapes[2:]), rest),
        Layout((), ()),
    ]
    for other in others:
        refused("expected a message for this model, got one for another", blob, other)


def test_refuses_another_sender_or_round(blob):
    refused("expected a message of sender 4, got 3", blob, sender=4)
    refused("expected a message of round 6, got 5", blob, round=6)


def test_refuses_more_entries_than_there_are(blob):
    mask = sections(blob)[0]
    many = np.frombuffer(mask, "<u4", 4).copy()
    many[3] = 10
    refused(
        "expected up to 9 stored entries of weight 3, got 10", forged(blob, mask=many.tobytes() + mask[16:])
    )
    many[:] = 2**32 - 1
    refused(
        "expected up to 135 stored entries of weight 0, got 4294967295", forged(blob, mask=many.tobytes())
    )
    known = state_of(1)
    difference = wire.encode(state_of(), known=known, mask="difference")
    mask = sections(difference)[0]
    many = np.frombuffer(mask, "<u4", 8).copy()
    most = known.bitmap.counts.tolist()
    for i, text in ((1, f"up to {most[1]} dropped"), (5, f"up to {1320 - most[1]} stored")):
        more = many.copy()
        more[i] = 2000
        refused(text, forged(difference, mask=more.tobytes() + mask[32:]), known=known)


def test_refuses_counts_that_are_not_all_there(blob):
    refused("expected at least 16 bytes of a mask, got 15", forged(blob, mask=sections(blob)[0][:15]))
    refused("expected at least 16 bytes of a mask, got 0", forged(blob, mask=b""))


def test_refuses_other_counts_than_values(blob):
    mask, values, _ = sections(blob)
    fewer = np.frombuffer(mask, "<u4", 4).copy()
    fewer[0] -= 1
    refused(f"expected {len(values) - 4} bytes of values", forged(blob, mask=fewer.tobytes() + mask[16:]))
    refused(f"expected {len(values)} bytes of values", forged(blob, values=values[:-4]))


def test_refuses_other_bits_than_announced(blob):
    mask, values, _ = sections(blob)
    flipped = bytearray(mask)
    flipped[20] ^= 1
    refused("as many bits as announced and then zeros", forged(blob, mask=bytes(flipped)))
    fewer = np.frombuffer(mask, "<u4", 4).copy()
    fewer[:2] += np.array([-1, 1], np.int32).astype(np.uint32)
    refused("as many bits as announced and then zeros", forged(blob, mask=fewer.tobytes() + mask[16:]))


def test_refuses_bits_where_there_are_no_entries(blob):
    mask = bytearray(sections(blob)[0])
    mask[16 + 16] |= 0x80  # 135 entries: the 17th byte has 7
    refused("expected zero bits after the end of every tensor", forged(blob, mask=bytes(mask)))
    mask = bytearray(sections(blob)[0])
    mask[-1] = 1  # after the last weight
    refused("as many bits as announced and then zeros", forged(blob, mask=bytes(mask)))


@pytest.mark.parametrize("codec", ["entropy", "difference"])
def test_refuses_a_code_of_another_mask(codec):
    known = state_of(1)
    blob = wire.encode(state_of(), known=known, mask=codec)
    mask = sections(blob)[0]
    for wrong in (mask[:-4], mask + b"\0\0\0\0", mask[:-4] + b"\1\2\3\4"):
        refused("expected the code of a mask", forged(blob, mask=wrong), known=known)


@pytest.mark.parametrize("codec", ["difference", "known"])
def test_refuses_to_build_on_another_mask(codec):
    known = state_of(1)
    blob = wire.encode(known if codec == "known" else state_of(), known=known, mask=codec)
    refused("expected the mask that the message builds on, got none", blob)
    refused(
        "expected the mask [0-9a-f]{16} that the message builds on, got [0-9a-f]{16}", blob, known=state_of(2)
    )
    if codec == "known":
        refused("expected no bytes of a mask that is known, got 4", forged(blob, mask=b"\0" * 4), known=known)


def test_refuses_a_known_mask_that_nobody_needs(blob):
    refused("expected no known mask for this codec, got 0000000000000001", forged(blob, header={24: u8(1)}))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("values", ["fp32", "bf16", "fp16"])
def test_refuses_what_is_not_finite(values, number):
    blob = wire.encode(state_of(), values=values, pack=False)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[values]
    bad = torch.tensor([number], dtype=dtype).view(torch.uint8).numpy().tobytes()
    section = sections(blob)[1]
    for at in (0, len(section) // 2 // len(bad) * len(bad), len(section) - len(bad)):
        changed = section[:at] + bad + section[at + len(bad) :]
        refused("expected finite numbers, got nan or inf", forged(blob, values=changed))
    rest = np.float32(number).tobytes() + sections(blob)[2][4:]
    refused("expected finite numbers, got nan or inf", forged(blob, rest=rest))


def test_refuses_strange_scales_and_codes():
    blob = wire.encode(state_of(), values="q8", pack=False)
    values = sections(blob)[1]
    for scale in (float("nan"), float("inf"), 3e38):
        refused("expected finite numbers", forged(blob, values=np.float32(scale).tobytes() + values[4:]))
    refused("expected scales from 0", forged(blob, values=np.float32(-1).tobytes() + values[4:]))
    refused("codes from -127", forged(blob, values=values[:-1] + b"\x80"))


def test_refuses_a_strange_scale_and_codes_of_sixteen_bits():
    blob = wire.encode(state_of(), values="q16", pack=False)
    values = sections(blob)[1]
    for scale in (float("nan"), float("inf"), 3e38):
        refused("expected finite numbers", forged(blob, values=np.float32(scale).tobytes() + values[4:]))
    refused("expected scales from 0", forged(blob, values=np.float32(-1).tobytes() + values[4:]))
    refused("codes from -32767", forged(blob, values=values[:-2] + b"\0\x80"))


def test_refuses_packed_values_that_are_none():
    blob = wire.encode(state_of())
    assert wire.inspect(blob).packed
    values, plain = sections(blob)[1], len(sections(wire.encode(state_of(), pack=False))[1])
    refused("expected the code of", forged(blob, values=values[:-4]))
    refused("expected the code of", forged(blob, values=values + b"\0"))
    refused("expected the code of", forged(blob, values=b""))
    refused(f"expected fewer than {plain} bytes of values, got {plain}", forged(blob, values=bytes(plain)))


def test_a_receiver_allocates_no_more_than_its_model(blob, monkeypatch):
    """Whatever the sizes and counts in a message say."""
    asked = []

    def spy(module, name):
        real = getattr(module, name)

        def allocate(*shape, **options):
            result = real(*shape, **options)
            asked.append(result.nbytes)
            return result

        monkeypatch.setattr(module, name, allocate)

    for module, name in ((torch, "empty"), (torch, "zeros"), (np, "empty"), (np, "zeros")):
        spy(module, name)
    for message, _how in originals():
        for at in range(0, HEADER + 40, 4):
            for number in (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\1\0"):
                changed = bytearray(message)
                changed[at : at + 4] = number
                try:
                    wire.decode(repaired(bytes(changed)), LAYOUT, state_of(1))
                except WireError:
                    pass
    assert asked and max(asked) <= 4 * (LAYOUT.segments.numel + 28)


# What is asked of encode


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"values": "fp64"}, "expected values as one of"),
        ({"mask": "zip"}, "expected a mask codec that fits"),
        ({"mask": "difference"}, r"out of \['bitmap', 'entropy'\], got 'difference'"),
        ({"mask": "known", "known": state_of(1)}, "got 'known'"),
        ({"sender": -1}, "expected a sender and a round from 0"),
        ({"round": 2**32}, "expected a sender and a round from 0"),
        ({"known": random_bitmap((3,), 0.5)}, "expected a known mask of sizes"),
    ],
)
def test_encode_refuses(options, reason):
    with pytest.raises(ValueError, match=reason):
        wire.encode(state_of(), **options)


@pytest.mark.parametrize(
    ("values", "number"),
    [
        ("fp32", float("nan")),
        ("bf16", float("inf")),
        ("fp16", 65520.0),
        ("q8", float("nan")),
        ("q8", torch.finfo(torch.float32).max),
        ("q16", float("inf")),
    ],
)
def test_encode_refuses_what_does_not_fit(values, number):
    state, residual = state_of().clone(), Residual()
    state.values[7] = number
    with pytest.raises(ValueError, match="expected finite numbers that fit"):
        wire.encode(state, values=values, residual=residual)
    assert residual.state is None


def test_strided_bytes_are_refused():
    with pytest.raises(ValueError, match="expected contiguous bytes"):
        wire.decode(memoryview(wire.encode(state_of()))[::2], LAYOUT)


# Mutated messages: tests/fuzz_wire.py runs as many as you like


@pytest.mark.parametrize("seed", range(3))
def test_mutated_messages(seed):
    tally = fuzz(1500, seed)
    assert tally["refused"] > 1000 and tally["accepted"] > 20
