"""Devices by their full name: "cuda" is the current card, cuda:0 say, and torch finds the two different."""

import torch


def numbered(device: torch.device | str) -> torch.device:
    """Return the device as a tensor on it names it, so that two names of one device are equal.

    >>> from sparsefl.kernels import devices
    >>> devices.numbered("cpu"), devices.numbered("cuda:1")
    (device(type='cpu'), device(type='cuda', index=1))
    """
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
