"""What runs sparse in a network and what does not: the rows of sparse_engine/nn/rows.py as a table, with
totals, and whether the whole of it can be a program (sparse_engine/program).
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, overload

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sparse_engine.flops import Flops, count_flops, is_counted
from sparse_engine.nn import precision
from sparse_engine.nn.bridge import compress
from sparse_engine.nn.convert import to_dense
from sparse_engine.nn.layer import SparseLayer
from sparse_engine.nn.rows import Row, weight_rows
from sparse_engine.program.capture import NotCaptured, capture


class Report(Sequence[Row]):
    """The rows, and their totals. Prints as a table, in a notebook too."""

    def __init__(
        self,
        rows: Iterable[Row],
        vectors: int,
        flops: Flops | None = None,
        program: str | None = None,
        precision: str = "fp32",
    ) -> None:
        self.rows = tuple(rows)
        self.vectors = vectors  # entries of biases, norms and the like
        self.flops = flops  # of the whole network; None without a sample
        self.precision = precision  # of activations: fp32 or bf16
        self.program = program  # whether it can be one, in a sentence; None without a sample

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
        if self.precision == "bf16":
            lines.append(_BF16)
        if self.program is not None:
            lines.append(self.program)
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


_BF16 = (
    "Activations and their gradients are bfloat16; weights, their gradients, sums and statistics of norms "
    "are float32."
)
_NUMBERS = ("weights", "density", "FLOP")


def report(net: nn.Module, input_shape: Sequence[int] | None = None, *, sample: Any = None) -> Report:
    """Return one row per layer or parameter that holds weights: whether it is sparse or dense, and why.

    net          a network, sparse or dense
    input_shape  the shape of one sample, to count FLOP too (as in `se.count_flops`), and to say whether the
                 network can train as a program (`se.compile`), or why it runs layer by layer
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
    >>> print(se.report(torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.GELU()), (20,)).program)
    Runs layer by layer (no program: there is no step for GELU (1)).
    """
    flops = program = None
    if input_shape is not None or sample is not None:
        flops = count_flops(net, input_shape, sample=sample)
        program = _program(net, sample if input_shape is None else tuple(input_shape))
    rows = [row._replace(flops=_flops(row, net, flops)) for row in weight_rows(net)]
    return Report(rows, _vectors(net), flops, program, precision.of(net))


def _program(net: nn.Module, given: Any) -> str:
    """Return whether `net` can be a program; `given`: a batch of one, or the shape of a sample."""
    if isinstance(given, tuple) and len(given) == 1 and isinstance(given[0], Tensor):
        given = given[0]
    shape = tuple(given.shape[1:]) if isinstance(given, Tensor) else given
    try:
        if any(not isinstance(size, int) for size in shape):
            raise NotCaptured("its forward takes more than one argument")
        graph = capture(to_dense(net), shape, compress(net).layout)
    except ValueError as reason:
        return f"Runs layer by layer (no program: {reason})."
    return f"Can train as a program of {len(graph.steps)} steps (se.compile)."


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
