"""Triton's own run time on the virtual card: it launches what was compiled ahead of time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a real card is here")


def python(*args):
    """In a process of its own, without the interpreter."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests"), env.get("PYTHONPATH", "")])
    return subprocess.run([sys.executable, *args], env=env, cwd=ROOT, capture_output=True, text=True)


LAUNCH_ALL = """
import json, re, torch, virtual_card
from virtual_card import compiled, card as cards
from sparsefl.kernels import bitmap
from sparsefl.kernels.drift import drift
from sparsefl.kernels.layout import Packed
from sparsefl.kernels.masked_average import masked_average
from sparsefl.kernels.masked_sgd import masked_sgd_
from sparsefl.kernels.pack import pack, unpack
from sparsefl.kernels.pqi import pqi
from sparsefl.kernels.select import select

texts = []
run = cards.Card.launch
def launch(self, ptx, *rest):
    texts.append(ptx)
    return run(self, ptx, *rest)
cards.Card.launch = launch

with virtual_card.installed(jit=True):
    for sizes in ((64, 128, 1024), (7, 1025)):
        generator = torch.Generator().manual_seed(0)
        mask = (torch.rand(sum(sizes), generator=generator) < 0.4).to("cuda")
        stored = bitmap.from_mask(mask, sizes)
        assert torch.equal(bitmap.to_mask(stored).cpu(), mask.cpu())
        dense = torch.randn(sum(sizes), generator=generator).to("cuda")
        w = pack(dense, stored)
        assert torch.equal(unpack(w, stored).cpu(), torch.where(mask, dense, 0).cpu())
        model = Packed(stored, w)
        assert torch.equal(masked_average(stored, [model, model]).cpu(), w.cpu())
        assert drift(model, model).sum() == 0
        for p, q in ((0.5, 1.0), (1.0, 2.0)):
            pqi(w, stored.offsets, p=p, q=q)
        for largest in (True, False):
            select(w, stored, stored.counts // 2, largest=largest)
        for u, more in ((None, {}), (w * 0, {"momentum": 0.9}), (w * 0, {"momentum": 0.9, "nesterov": True})):
            masked_sgd_(w, dense, u, lr=0.1, through=stored, **more)
            masked_sgd_(w, w * 2, u, lr=0.1, **more)
            if u is not None:
                masked_sgd_(w[1:], w[1:] * 2, u[1:], lr=0.1, **more)
        one = bitmap.from_mask(mask[: sum(sizes) // 4 * 4].clone())
        bitmap.csr(one, 4), bitmap.transpose(one, 4)

def code(ptx):
    return re.sub(r"//.*|\\.loc.*|\\.file.*|\\$L__\\w+:|\\s", "", ptx.split(".section")[0])

ahead = {code(binary.ptx) for binary in compiled.binaries().values()}
at_run_time = {code(ptx) for ptx in texts}
print(json.dumps([len(texts), len(at_run_time), len(at_run_time - ahead)]))
"""


def test_the_run_time_launches_what_was_compiled_ahead_of_time():
    done = python("-c", LAUNCH_ALL)
    assert done.returncode == 0, done.stderr
    launches, kernels, others = json.loads(done.stdout)
    assert launches > 90 and kernels > 25 and others == 0


def test_tests_run_as_on_a_machine_with_a_gpu():
    """tests/kernels pass there: tensors are put where the variant wants them."""
    files = ["tests/kernels/test_pack.py", "tests/kernels/test_registry.py"]
    done = python("-m", "virtual_card.as_gpu", "-q", "-p", "no:xdist", "-k", "triton or backend", *files)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
