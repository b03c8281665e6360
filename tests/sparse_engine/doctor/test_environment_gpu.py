"""What doctor says of GPUs, and of none."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from sparse_engine.doctor.environment import environment


@pytest.fixture(params=[(8, 9), (7, 0)])
def card(request, tmp_path):
    major, minor = request.param
    told = SimpleNamespace(name="A card", major=major, minor=minor, total_memory=24 << 30)
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Release\n")
    with (
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(torch.cuda, "device_count", lambda: 1),
        mock.patch.object(torch.cuda, "get_device_properties", lambda *_: told),
        mock.patch("sparse_engine.program.gpu.cards.DRIVER", version),
    ):
        yield request.param


def test_a_card_and_its_driver_are_told(card):
    facts = environment()
    assert facts["gpu"].startswith(f"A card, sm_{card[0]}{card[1]}, 24 GB")
    assert ("cannot be used: expected a GPU from sm_80" in facts["gpu"]) == (card == (7, 0))
    assert facts["driver"] == "580.65.06"
    assert "nvml" in facts and "cuda of torch" in facts


def test_no_card_says_why(tmp_path):
    with (
        mock.patch.object(torch.cuda, "is_available", lambda: False),
        mock.patch.object(torch.version, "cuda", None),
        mock.patch("sparse_engine.program.gpu.cards.DRIVER", tmp_path / "none"),
    ):
        facts = environment()
    assert facts["gpu"].startswith("none: this torch (") and "without CUDA" in facts["gpu"]
    assert facts["driver"].startswith("none (")
