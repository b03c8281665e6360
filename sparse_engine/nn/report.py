"""What runs sparse in a network and what does not: one row per layer or parameter that holds weights.

Weights are tensors of two or more dimensions. Biases, norms and other vectors have no rows; the total counts
them. A tensor that two layers share counts once, at its first name.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, overload

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from sparse_engine.flops import Flops, count_flops, is_counted
from sparse_engine.nn.layer import SparseLayer
from sparse_engine.nn.obstacles import obstacles, sharing
from sparse_engine.nn.wrapped import Wrapped


class Row(NamedTuple):
    """A layer, or a parameter of the user's own module. `flops`: of one sample forward, as (dense, now)."""

    name: str
    kind: str  # "sparse"; "dense": could be sparse; "torch": cannot be
    density: float
    why: str
    module: str
    weights: int  # entries of the dense weight
    stored: int
    flops: tuple[int, int] | None = None  # None: not counted


class Report(Sequence[Row]):
    """The rows, and their totals. Prints as a table, in a notebook too."""

    def __init__(self, rows: Iterable[Row], vectors: int, flops: Flops | None = None) -> None:
        self.rows = tuple(rows)
        self.vectors = vectors  # entries of biases, norms and the like
        self.flops = flops  # of the whole network; None without a sample

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def weights(self) -> int:
        """All parameters of the dense network, vectors too."""
        return sum(row.weights for row in self.rows) + self.vectors

    @property
    def stored(self) -> int:
        """All parameters that this network stores."""
        return sum(row.stored for row in self.rows) + self.vectors

    @property
    def sparse_weights(self) -> int:
        """All weights of sparse layers, stored or not."""
        return sum(row.weights for row in self.rows if row.kind == "sparse")

    @property
    def density(self) -> float:
        """Stored share of the weights in sparse layers; 1 if there are none."""
        stored = sum(row.stored for row in self.rows if row.kind == "sparse")
        return stored / self.sparse_weights if self.sparse_weights else 1.0

    @property
    def weights_share(self) -> float:
        """Share of all parameters that is in sparse layers."""
        return self.sparse_weights / self.weights if self.weights else 0.0

    @property
    def flops_share(self) -> float | None:
        """Share of the dense network's FLOP that is in sparse layers; None without a sample."""
        if self.flops is None:
            return None
        sparse = sum(row.flops[0] for row in self.rows if row.kind == "sparse" and row.flops)
        return sparse / self.flops.dense_forward if self.flops.dense_forward else 0.0

    @property
    def totals(self) -> list[str]:
        """The sentences below the table."""
        layers = sum(row.kind == "sparse" for row in self.rows)
        where = f"{layers} sparse layer{'s' if layers > 1 else ''}, with density {self.density:.3f}"
        lines = [
            f"{self.weights_share:.1%} of {self.weights:,} weights are in "
            f"{where if layers else 'sparse layers'}; "
            f"{self.stored:,} are stored in all ({self.vectors:,} in biases, norms and other vectors)."
        ]
        if self.flops is not None:
            dense, now = self.flops.dense_forward, self.flops.sparse_forward
            left = f"{now / dense:.1%}" if dense else "none"
            lines.append(
                f"{self.flops_share:.1%} of {dense:,} FLOP of a forward pass are in sparse layers; "
                f"{left} of all are left ({now:,})."
            )
            unknown = [row.name for row in self.rows if row.flops is None and row.weights]
            if unknown:
                lines.append(f"FLOP without what the network does with {', '.join(unknown)}.")
        return lines

    def __str__(self) -> str:
        table = [self._columns(), *map(self._cells, self.rows)]
        widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
        lines = [
            "  ".join(
                cell.rjust(width) if column in _NUMBERS else cell.ljust(width)
                for column, cell, width in zip(table[0], line, widths, strict=True)
            ).rstrip()
            for line in table
        ]
        return "\n".join([*lines, "", *self.totals])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(cell)}</th>" for cell in self._columns())
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in self._cells(row)) + "</tr>"
            for row in self.rows
        )
        totals = "".join(f"<p>{escape(line)}</p>" for line in self.totals)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{totals}"

    def _columns(self) -> list[str]:
        return ["name", "module", "runs", "weights", "density", *(["FLOP"] if self.flops else []), "why"]

    def _cells(self, row: Row) -> list[str]:
        flops = "?" if row.flops is None else f"{row.flops[1]:,}"
        cells = [row.name or "(whole)", row.module, row.kind, f"{row.weights:,}", f"{row.density:.3f}"]
        return [*cells, *([flops] if self.flops else []), row.why]


_NUMBERS = ("weights", "density", "FLOP")


def report(net: nn.Module, input_shape: Sequence[int] | None = None, *, sample: Any = None) -> Report:
    """Return one row per layer or parameter that holds weights: whether it is sparse or dense, and why.

    net          a network, sparse or dense
    input_shape  the shape of one sample, to count FLOP too (as in `se.count_flops`)
    sample       instead of a shape: what the network takes, with a batch of one

    The result is a sequence of rows, and a table when it is printed.

    >>> import torch, sparse_engine as se
    >>> net = torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.Conv1d(1, 4, 5))
    >>> se.report(se.sparsify(net, density=0.1))
    name  module        runs    weights  density  why
    0     SparseLinear  sparse      800    0.100
    1     Conv1d        torch        20    1.000  no sparse kernel for Conv1d
    <BLANKLINE>
    92.6% of 864 weights are in 1 sparse layer, with density 0.100; 144 are stored in all \
(44 in biases, norms and other vectors).
    """
    flops = None
    if input_shape is not None or sample is not None:
        flops = count_flops(net, input_shape, sample=sample)
    rows = [row._replace(flops=_flops(row, net, flops)) for row in _rows(net)]
    return Report(rows, _vectors(net), flops)


def _rows(net: nn.Module) -> Iterator[Row]:
    reasons, shared = obstacles(net), sharing(net)
    idle = "exempt" if any(isinstance(m, SparseLayer) for m in net.modules()) else "not made sparse"
    for path, module in net.named_modules():
        kind = (module.own_class if isinstance(module, Wrapped) else type(module)).__name__
        if isinstance(module, SparseLayer):
            pattern = module.pattern
            why = "" if pattern.nnz else "stores nothing: its output is its bias alone"
            yield Row(path, "sparse", pattern.density, why, kind, pattern.numel, pattern.nnz)
            continue
        found = _weights(path, module)
        quantised = _quantised(module)
        if quantised:
            yield Row(path, "torch", 1.0, "its weight is quantised", kind, quantised, quantised)
        if not found:
            continue
        counted = {n: w for n, w in found.items() if shared.get(id(w), [n])[0] == n}
        if path in reasons:
            cannot = reasons[path]
            row = Row(path, "torch" if cannot else "dense", 1.0, cannot or idle, kind, 0, 0)
            yield _sized(row, counted)
        elif _is_layer(module):
            yield _sized(Row(path, "torch", 1.0, _reason(found, kind, shared), kind, 0, 0), counted)
        else:
            for name, w in found.items():
                why = _reason({name: w}, kind, shared, f"a parameter of {kind} itself")
                one = {name: w} if name in counted else {}
                yield _sized(Row(name, "torch", 1.0, why, kind, 0, 0), one)


def _weights(path: str, module: nn.Module) -> dict[str, Tensor]:
    """Return {name: tensor} of a module's own weights, those behind a parametrization too."""
    if isinstance(module, ParametrizationList):
        return {}  # its owner's
    within = f"{path}." if path else ""
    found = {within + name: p for name, p in module._parameters.items() if p is not None}
    if is_parametrized(module):
        behind = f"{within}parametrizations"
        found |= dict(module.get_submodule("parametrizations").named_parameters(behind))
    return {name: p for name, p in found.items() if is_lazy(p) or p.dim() > 1}


def _quantised(module: nn.Module) -> int:
    """Return the number of entries of a quantised weight, which a method returns; 0 if there is none."""
    weight = getattr(module, "weight", None)
    found = weight() if callable(weight) and not isinstance(weight, Tensor | nn.Module) else None
    return found.numel() if isinstance(found, Tensor) and found.is_quantized else 0


def _is_layer(module: nn.Module) -> bool:
    """Return whether this is a layer of torch, or derived from one. Containers are none."""
    own = [c for c in type(module).__mro__ if c.__module__.startswith("torch.") and c is not nn.Module]
    return any(issubclass(c, nn.Module) and c.__module__ != "torch.nn.modules.container" for c in own)


def _reason(
    found: Mapping[str, Tensor], kind: str, shared: Mapping[int, list[str]], otherwise: str | None = None
) -> str:
    why = otherwise or f"no sparse kernel for {kind}"
    others = [n for name, w in found.items() for n in shared.get(id(w), ()) if n != name]
    return why + (f"; shared with {', '.join(others)}" if others else "")


def _sized(row: Row, weights: Mapping[str, Tensor]) -> Row:
    n = sum(0 if is_lazy(w) else w.numel() for w in weights.values())
    return row._replace(weights=n, stored=n)


def _vectors(net: nn.Module) -> int:
    """Return the number of entries of the parameters that have no row."""
    packed = {id(m.weight) for m in net.modules() if isinstance(m, SparseLayer)}
    return sum(p.numel() for p in net.parameters() if not is_lazy(p) and p.dim() < 2 and id(p) not in packed)


def _flops(row: Row, net: nn.Module, flops: Flops | None) -> tuple[int, int] | None:
    """Return the FLOP of a layer as (dense, now); None if it is unknown how its weights are used."""
    if flops is None or row.name not in (layers := dict(net.named_modules())):
        return None
    if not is_counted(layers[row.name]):
        return None
    uses = [use for use in flops.layers if use.name.rpartition(".")[0] == row.name]
    dense, now = (2 * sum(m) for m in ([u.dense_macs for u in uses], [u.sparse_macs for u in uses]))
    biases = sum(use.bias_adds for use in uses)
    return dense + biases, now + biases
