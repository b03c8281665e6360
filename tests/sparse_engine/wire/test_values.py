"""Numbers on the wire: sizes, roundings by hand, packing."""

import numpy as np
import pytest
import torch
from helpers import randn

from sparse_engine.wire.values import CODECS, as_bytes, from_bytes, pack, unpack

SIZES = [0, 1, 255, 256, 257, 3000]


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("n", SIZES)
def test_sizes_and_packing(name, n):
    codec, x = CODECS[name], randn(n) * 0.05
    data = codec.encode(x)
    sizes = {"fp32": 4 * n, "q8": n + 4 * -(-n // 256), "q16": 2 * n + 4 * (n > 0)}
    assert data.size == codec.size(n) == sizes.get(name, 2 * n)
    packed = pack(codec, data, n)
    if packed is not None:
        assert packed.size < data.size and unpack(codec, packed, n).tobytes() == data.tobytes()
    assert packed is None or n > 1
    assert packed is not None or n < 3000 or name in ("q8", "q16")  # whose codes use all bits
    back = codec.decode(data, n)
    assert back.dtype == torch.float32 and back.shape == (n,)
    assert codec.encode(back).tobytes() == data.tobytes()  # rounding twice changes nothing


def test_codes_pack_where_few_are_used():
    codec, x = CODECS["q8"], torch.tensor([1.0, *[0.01] * 999])
    data = codec.encode(x)
    packed = pack(codec, data, 1000)
    assert packed.size < 200 and unpack(codec, packed, 1000).tobytes() == data.tobytes()


def test_eight_bits_by_hand():
    x = torch.zeros(258)
    x[:4] = torch.tensor([127.0, -63.5, 0.4, -0.6])  # scale 1; halves go to the even one
    x[256:] = torch.tensor([0.0, -2.54])  # scale 0.02
    data = CODECS["q8"].encode(x)
    assert np.frombuffer(data[:8].tobytes(), "<f4") == pytest.approx([1, 0.02])
    assert data[8:].view(np.int8)[[0, 1, 2, 3, 256, 257]].tolist() == [127, -64, 0, -1, 0, -127]
    assert CODECS["q8"].decode(data, 258)[[0, 1, 2, 3, 256]].tolist() == [127, -64, 0, -1, 0]


def test_sixteen_bits_by_hand():
    x = torch.zeros(300)
    x[[0, 1, 2, 299]] = torch.tensor([3276.7, -0.04, 0.06, -1.26])  # scale 0.1, of all 300
    data = CODECS["q16"].encode(x)
    assert np.frombuffer(data[:4].tobytes(), "<f4") == pytest.approx([0.1])
    assert data[4:].view("<i2")[[0, 1, 2, 3, 299]].tolist() == [32767, 0, 1, 0, -13]
    assert CODECS["q16"].decode(data, 300)[[1, 2, 299]].tolist() == pytest.approx([0, 0.1, -1.3])


def test_sixteen_bits_are_off_by_half_a_step():
    x = randn(3000)
    back = CODECS["q16"].decode(CODECS["q16"].encode(x), 3000)
    step = float(x.abs().max()) / 32767
    assert 0.49 * step < (back - x).abs().max() < 0.51 * step


@pytest.mark.parametrize("name", ["q8", "q16"])
def test_blocks_of_nothing_stay_nothing(name):
    for smallest in (0.0, 1e-45):  # its scale is 0
        x = torch.full((300,), smallest)
        assert not CODECS[name].decode(CODECS[name].encode(x), 300).any()


@pytest.mark.parametrize("name", CODECS)
def test_signs_and_extremes(name):
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, 3.0e-3, 60000.0])
    back = CODECS[name].decode(CODECS[name].encode(x), 6)
    if name not in ("q8", "q16"):
        assert back.view(torch.int32).tolist()[:4] == x.view(torch.int32).tolist()[:4]
    assert (back - x).abs().max() <= 60000 / 2**7


def test_bytes_of_tensors():
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.int8):
        x = torch.arange(6).to(dtype)
        assert from_bytes(as_bytes(x).copy(), dtype).equal(x)
        assert as_bytes(x).size == 6 * x.element_size()
    assert as_bytes(torch.empty(0)).size == 0 and from_bytes(np.empty(0, np.uint8), torch.int64).numel() == 0
    as_bytes(x)[0] = 7
    assert x[0] == 7  # no copy
