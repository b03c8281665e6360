"""SGD for networks with sparse layers: one native pass per parameter, packed or dense.

s  = min(1, max_norm / |g|)
d  = s g + lambda w
u <- mu u + d
w <- w - eta (d + mu u if Nesterov, else u)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparsefl.kernels.masked_sgd import masked_sgd_


class SparseSGD(Optimizer):
    """Like torch.optim.SGD, with `max_norm` to clip the gradient's norm over all parameters.

    net           a network, sparse or dense; its parameters that need gradients are trained
    lr            learning rate
    momentum      from 0, below 1
    weight_decay  L2 penalty
    nesterov      Nesterov's momentum
    max_norm      the gradient is scaled down to this norm if it is longer; None: never

    A layer whose pattern was replaced starts with fresh momentum. Momentum follows a network that is moved to
    another device.

    >>> import torch, sparse_engine as se
    >>> net = se.sparsify(torch.nn.Linear(20, 50), density=0.1)
    >>> before = net.weight.detach().clone()
    >>> net(torch.randn(3, 20)).sum().backward()
    >>> se.SparseSGD(net, lr=0.1, momentum=0.9).step()
    >>> torch.equal(net.weight, before)
    False
    """

    def __init__(
        self,
        net: nn.Module,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        max_norm: float | None = None,
    ) -> None:
        if lr < 0 or not 0 <= momentum < 1 or weight_decay < 0 or (max_norm is not None and max_norm <= 0):
            raise ValueError(
                "expected lr and weight_decay from 0, momentum in [0, 1) and max_norm above 0, "
                f"got {lr}, {weight_decay}, {momentum}, {max_norm}"
            )
        if nesterov and momentum == 0:
            raise ValueError("expected a momentum with nesterov, got 0")
        self.max_norm = max_norm
        numbers = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__([p for p in net.parameters() if p.requires_grad], numbers)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        work = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        scale = self._scale([p.grad for p, _ in work])
        for p, group in work:
            u = self._momentum(p) if group["momentum"] else None
            masked_sgd_(
                p.data.view(-1),
                p.grad.contiguous().view(-1),
                u,
                lr=group["lr"],
                momentum=group["momentum"],
                weight_decay=group["weight_decay"],
                nesterov=group["nesterov"],
                scale=scale,
            )
        return loss

    def _scale(self, gradients: list[Tensor]) -> float:
        if self.max_norm is None or not gradients:
            return 1.0
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients])).item()
        return min(1.0, self.max_norm / (norm + 1e-6))

    def _momentum(self, p: Tensor) -> Tensor:
        state = self.state[p]
        if "u" not in state or state["u"].numel() != p.numel():
            state["u"] = torch.zeros(p.numel(), dtype=p.dtype, device=p.device)
        state["u"] = state["u"].to(p.device)  # where the network was moved
        return state["u"]
