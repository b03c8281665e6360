"""Who can take models from whom in round t.

    random    a uniform M-subset of the others for every client;  by default a fresh one each round
    regular   a random graph in which everybody has M neighbours, both ways
    ring, line, star (client 0 in the middle), grid (rows of ceil(sqrt K), the last may be short), full
    edges     the user's: pairs (k, j), "k takes models from j", or an adjacency matrix, or a file of either

Links are directed: j in G_k does not say that k is in G_j. `redraw` draws again each round; for ring, line,
star and grid that is the same graph with clients in new places.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fl.config.links import check
from fl.rng import stream

Edges = Any  # [E, 2] pairs, a K x K matrix (dense or scipy.sparse), or the path of a file with one of them
_TABLE_BYTES = 1 << 26
_SWITCHES = 100  # rounds of switching before a pairing is given up; a few suffice unless the graph is tiny


class Neighbours(NamedTuple):
    """G_k of every client k, in CSR form: sorted, k itself never in it."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]

    def of(self, k: int) -> NDArray[np.int32]:
        return self.indices[self.indptr[k] : self.indptr[k + 1]]

    @property
    def num_clients(self) -> int:
        return len(self.indptr) - 1

    @property
    def degrees(self) -> NDArray[np.int64]:
        """The number of models that every client takes."""
        return np.diff(self.indptr)

    @property
    def receivers(self) -> NDArray[np.int64]:
        """The number of clients that take every client's model."""
        return np.bincount(self.indices, minlength=self.num_clients)

    def takers(self) -> NDArray[np.int32]:
        """The client k of every entry of `indices`."""
        return np.repeat(np.arange(self.num_clients, dtype=np.int32), self.degrees)


def from_links(num_clients: int, takers: NDArray[Any], givers: NDArray[Any]) -> Neighbours:
    """Neighbours of the links "takers[i] takes from givers[i]", in any order, each named once or more."""
    link = takers.astype(np.int64) * num_clients + givers
    link.sort()
    if len(link):
        link = link[np.concatenate([[True], link[1:] != link[:-1]])]
    rows, columns = np.divmod(link, num_clients)
    return Neighbours(_indptr(np.bincount(rows, minlength=num_clients)), columns.astype(np.int32))


@dataclass(frozen=True)
class Topology:
    """What `make` returns. `neighbours(t)` depends on the arguments of `make` and on t alone."""

    kind: str
    num_clients: int
    degree: int
    seed: int
    redraw: bool
    links: Neighbours | None = None  # of kind "edges"

    def neighbours(self, t: int) -> Neighbours:
        return self._drawn(t) if self.redraw else self._static

    @cached_property
    def _static(self) -> Neighbours:
        return self._drawn(0)

    def _drawn(self, t: int) -> Neighbours:
        if self.links is not None:
            return self.links
        rng = stream(self.seed, "topology", t)
        if self.kind == "random":
            return _random(self.num_clients, self.degree, rng)
        if self.kind == "regular":
            return _regular(self.num_clients, self.degree, rng)
        fixed = _FIXED[self.kind](self.num_clients)
        if not self.redraw or self.kind == "full":
            return fixed
        place = rng.permutation(self.num_clients)
        return from_links(self.num_clients, place[fixed.takers()], place[fixed.indices])


def make(
    kind: str,
    num_clients: int,
    *,
    degree: int = 10,
    seed: int = 0,
    redraw: bool | None = None,
    edges: Edges = None,
) -> Topology:
    """`degree` is M of `random` and `regular`, ignored by the others. `redraw`: by default `random` alone."""
    check(kind, num_clients, degree, redraw, edges)
    links = read_edges(edges, num_clients) if kind == "edges" else None
    return Topology(kind, num_clients, degree, seed, kind == "random" if redraw is None else redraw, links)


def read_edges(edges: Edges, num_clients: int) -> Neighbours:
    """A file is `.npy`, `.npz` (scipy.sparse) or text: lines of numbers, blanks or commas, `#` comments."""
    where = "edges"
    if isinstance(edges, str | Path):
        where = str(edges)
        edges = _read(Path(edges))
    if sparse.issparse(edges):
        _square(edges, num_clients, where)
        takers, givers = edges.nonzero()
    else:
        table = np.asarray(edges)
        if table.ndim == 2 and table.shape[1] == 2:
            takers, givers = _pairs(table, where)
        else:
            _square(table, num_clients, where)
            takers, givers = np.nonzero(table)
    strange = (takers < 0) | (takers >= num_clients) | (givers < 0) | (givers >= num_clients)
    wrong = np.flatnonzero(strange | (takers == givers))
    if wrong.size:
        k, j = int(takers[wrong[0]]), int(givers[wrong[0]])
        raise ValueError(
            f"{where}: expected links of two clients out of 0..{num_clients - 1}, got {k} with {j}"
        )
    return from_links(num_clients, takers, givers)


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".npz":
            return sparse.load_npz(path)
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        lines = [line.replace(",", " ").partition("#")[0].strip() for line in path.read_text().splitlines()]
        if not any(lines):
            raise ValueError("no numbers")
        return np.loadtxt([line for line in lines if line], ndmin=2)
    except MemoryError:
        raise
    except Exception as wrong:  # on a damaged file numpy, scipy and zipfile raise almost anything
        raise ValueError(f"{path}: expected an edge list or an adjacency matrix, got {wrong}") from wrong


def _pairs(table: NDArray[Any], where: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if table.dtype.kind not in "iufb":
        raise ValueError(f"{where}: expected pairs of whole numbers, got {table.dtype}")
    broken = (table != np.floor(table)) | (np.abs(table) > 2**31)
    if broken.any():
        raise ValueError(f"{where}: expected pairs of whole numbers, got {table[broken.any(1)][0]}")
    whole = table.astype(np.int64)
    return whole[:, 0], whole[:, 1]


def _square(matrix: Any, num_clients: int, where: str) -> None:
    if matrix.shape != (num_clients, num_clients):
        wanted = f"pairs [E, 2] or a {num_clients} x {num_clients} adjacency matrix"
        raise ValueError(f"{where}: expected {wanted}, got shape {tuple(matrix.shape)}")


def _indptr(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _random(num_clients: int, degree: int, rng: np.random.Generator) -> Neighbours:
    others = num_clients - 1
    few = degree * degree <= 2 * others  # then a row has no number twice with probability > 1/3
    lot = _distinct(num_clients, others, degree, rng) if few else _floyd(num_clients, others, degree, rng)
    lot += lot >= np.arange(num_clients, dtype=np.int32)[:, None]  # 0..K-2 are the others of k, in order
    return Neighbours(np.arange(num_clients + 1, dtype=np.int64) * degree, lot.reshape(-1))


def _distinct(rows: int, size: int, degree: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """[rows, degree]: uniform subsets of 0..size-1, sorted. Rows with a number twice are drawn again."""
    lot = np.empty((rows, degree), np.int32)
    todo = np.arange(rows)
    while todo.size:
        draw = rng.integers(size, size=(todo.size, degree), dtype=np.int32)
        draw.sort(axis=1)
        lot[todo] = draw
        todo = todo[(draw[:, 1:] == draw[:, :-1]).any(axis=1)]
    return lot


def _floyd(rows: int, size: int, degree: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Return such subsets by Floyd's algorithm: for i from size-degree up take one of 0..i, or i if taken."""
    lot = np.empty((rows, degree), np.int32)
    step = max(1, _TABLE_BYTES // size)
    for begin in range(0, rows, step):
        row = np.arange(min(step, rows - begin))
        taken = np.zeros((len(row), size), bool)
        for i in range(size - degree, size):
            one = rng.integers(i + 1, size=len(row))
            taken[row, np.where(taken[row, one], i, one)] = True
        lot[begin : begin + len(row)] = np.nonzero(taken)[1].reshape(len(row), degree)
    return lot


def _regular(num_clients: int, degree: int, rng: np.random.Generator) -> Neighbours:
    """Pair `degree` stubs of every client at random, switch away what is no simple graph: nearly uniform."""
    if 2 * degree >= num_clients:  # the complement is thinner, and switching works
        linked = ~np.eye(num_clients, dtype=bool)
        if degree < num_clients - 1:
            thin = _regular(num_clients, num_clients - 1 - degree, rng)
            linked[thin.takers(), thin.indices] = False
        return from_links(num_clients, *np.nonzero(linked))
    stubs = np.repeat(np.arange(num_clients, dtype=np.int64), degree)
    pairs = rng.permutation(stubs).reshape(-1, 2)
    while not _simplified(pairs, num_clients, rng):
        pairs = rng.permutation(stubs).reshape(-1, 2)
    return from_links(num_clients, pairs.reshape(-1), pairs[:, ::-1].reshape(-1))


def _codes(pairs: NDArray[np.int64], num_clients: int) -> NDArray[np.int64]:
    return pairs.min(axis=1) * num_clients + pairs.max(axis=1)


def _simplified(pairs: NDArray[np.int64], num_clients: int, rng: np.random.Generator) -> bool:
    """Switches loops and doubles away, in place; False where that does not end.

    A bad pair (a, b) and a random one (c, d) become (a, c) and (b, d) where both of these are new.
    """
    code = _codes(pairs, num_clients)
    order = np.argsort(code, kind="stable")
    known, added = code[order], np.empty(0, np.int64)  # a pair that was switched away counts as known
    bad = np.union1d(order[1:][known[1:] == known[:-1]], np.flatnonzero(pairs[:, 0] == pairs[:, 1]))
    for _ in range(_SWITCHES):
        if not bad.size:
            return True
        mates = rng.choice(len(pairs), size=min(2 * bad.size, len(pairs)), replace=False)
        mates = mates[~np.isin(mates, bad)][: bad.size]
        one = bad[: mates.size]
        (a, b), (c, d) = pairs[one].T, pairs[mates].T
        first, second = np.stack([a, c], 1), np.stack([b, d], 1)
        both = np.concatenate([_codes(first, num_clients), _codes(second, num_clients)])
        _, place, times = np.unique(both, return_inverse=True, return_counts=True)
        new = (times[place] == 1) & ~_in_sorted(both, known) & ~np.isin(both, added)
        good = new[: len(a)] & new[len(a) :] & (a != c) & (b != d)
        pairs[one[good]], pairs[mates[good]] = first[good], second[good]
        added = np.concatenate([added, both[np.concatenate([good, good])]])
        bad = rng.permutation(np.setdiff1d(bad, one[good]))
    return False


def _in_sorted(wanted: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.bool_]:
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return known[place] == wanted


def _both_ways(num_clients: int, a: NDArray[np.int64], b: NDArray[np.int64]) -> Neighbours:
    return from_links(num_clients, np.concatenate([a, b]), np.concatenate([b, a]))


def _ring(num_clients: int) -> Neighbours:
    k = np.arange(num_clients)
    return _both_ways(num_clients, k, (k + 1) % num_clients)


def _line(num_clients: int) -> Neighbours:
    k = np.arange(num_clients - 1)
    return _both_ways(num_clients, k, k + 1)


def _star(num_clients: int) -> Neighbours:
    leaves = np.arange(1, num_clients)
    return _both_ways(num_clients, np.zeros_like(leaves), leaves)


def _grid(num_clients: int) -> Neighbours:
    width = int(np.ceil(np.sqrt(num_clients)))
    k = np.arange(num_clients)
    right = k[(k % width < width - 1) & (k + 1 < num_clients)]
    down = k[k + width < num_clients]
    return _both_ways(num_clients, np.concatenate([right, down]), np.concatenate([right + 1, down + width]))


def _full(num_clients: int) -> Neighbours:
    others = np.tile(np.arange(num_clients - 1, dtype=np.int32), (num_clients, 1))
    others += others >= np.arange(num_clients, dtype=np.int32)[:, None]
    return Neighbours(np.arange(num_clients + 1, dtype=np.int64) * (num_clients - 1), others.reshape(-1))


_FIXED = {"ring": _ring, "line": _line, "star": _star, "grid": _grid, "full": _full}
