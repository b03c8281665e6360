"""How many samples of each class a client gets: counts [clients, classes], rows of one sum.

    dirichlet     class prior of a client ~ Dir(alpha, ..., alpha); a sample's class is drawn from the prior,
                  and drawn again among the classes that have samples left where all of one are taken
    pathological  n classes a client; of each the same number, or less where a class is too small for that

Which clients get the last samples of a class is a fair lottery among all that asked for one, not a matter of
the client's number. With `disjoint=False` the stock of a class is there for every client anew.
"""

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
_TRADES = 20  # a client; each halves what is left of the order at the start: nothing to be seen after 10


def dirichlet(
    stock: Counts, num_clients: int, alpha: float, per: int, disjoint: bool, rng: np.random.Generator
) -> Counts:
    """`per` samples per client. Every pass serves all or uses up a class: at most len(stock) + 1 of them."""
    prior = _log_gamma(alpha, (num_clients, len(stock)), rng)
    counts = np.zeros(prior.shape, dtype=np.int64)
    who = np.arange(num_clients)  # clients with samples missing
    while len(who):
        left = stock - counts.sum(0) if disjoint else stock - counts[who]
        missing = per - counts[who].sum(1)
        claims = rng.multinomial(missing, _softmax(np.where(left > 0, prior[who], -np.inf)))
        counts[who] += _lottery(claims, left, rng) if disjoint else np.minimum(claims, left)
        who = who[counts[who].sum(1) < per]
    return counts


def _log_gamma(alpha: float, shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float64]:
    """log Gamma(alpha) = log Gamma(alpha + 1) + log(U) / alpha; softmax of it ~ Dir(alpha). No underflow."""
    return np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / alpha


def _softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x = np.exp(x - x.max(1, keepdims=True))
    return x / x.sum(1, keepdims=True)


def _lottery(claims: Counts, left: Counts, rng: np.random.Generator) -> Counts:
    """The claims that are served: a random choice of those for a class that is asked for too often."""
    for c in np.flatnonzero(claims.sum(0) > left):
        claims[:, c] = rng.multivariate_hypergeometric(claims[:, c], left[c], method="marginals")
    return claims


def pathological(
    stock: Counts, num_clients: int, n: int, per: int | None, disjoint: bool, rng: np.random.Generator
) -> Counts:
    """`per` samples per client out of n classes, by default as many as the poorest client can have."""
    most = np.where(stock > 0, num_clients, 0)
    slots = _slots(stock, np.minimum(stock, most) if disjoint else most, n, num_clients)
    chosen = _assign(slots, n, num_clients, rng)
    room = (stock // np.maximum(slots, 1) if disjoint else stock)[chosen]
    possible = int(room.sum(1).min())
    per = possible if per is None else per
    if not n <= per <= possible:
        raise ValueError(
            f"expected from {n} (one per class) to {possible:,} training samples per client (what there is "
            f"for each of {num_clients:,} with {n} classes), got train_per_client = {per:,}"
        )
    counts = np.zeros((num_clients, len(stock)), dtype=np.int64)
    np.put_along_axis(counts, chosen, _level(room, per), axis=1)
    return counts


def _slots(stock: Counts, most: Counts, n: int, num_clients: int) -> Counts:
    """How many clients have each class: n K in all, in proportion to its samples up to `most`."""
    wanted = n * num_clients
    if most.sum() < wanted:
        raise ValueError(_too_many(stock, n, num_clients))
    lo, hi = 0.0, float(num_clients)  # slots a sample
    for _ in range(100):
        middle = (lo + hi) / 2
        lo, hi = (middle, hi) if np.minimum(most, middle * stock).sum() <= wanted else (lo, middle)
    return rounded(np.minimum(most, lo * stock)[None], np.array([wanted]), most)[0]


def _too_many(stock: Counts, n: int, num_clients: int) -> str:
    """Why n classes for everybody cannot be."""
    filled = int((stock > 0).sum())
    if filled < n:
        return f"expected classes_per_client of at most {filled}, the classes with training samples, got {n}"
    low, high = 0, num_clients  # the most clients for whom the samples last
    while high - low > 1:
        middle = (low + high) // 2
        enough = np.minimum(stock, middle).sum() >= n * middle
        low, high = (middle, high) if enough else (low, middle)
    return (
        f"expected at most {low:,} clients with {n} classes each, for whom the {int(stock.sum()):,} training "
        f"samples last, got num_clients = {num_clients:,}"
    )


def _assign(slots: Counts, n: int, num_clients: int, rng: np.random.Generator) -> Counts:
    """[K, n] different classes a client, class c in slots[c] of the rows; all such tables equally likely.

    From one such table by trades: two clients put together the classes that only one of them has, and draw
    anew (the curveball chain: Strona et al., Nature Communications 5, 2014).
    """
    table = np.repeat(np.arange(len(slots)), slots).reshape(n, num_clients).T.copy()
    half = num_clients // 2
    for _ in range(_TRADES):
        pairs = rng.permutation(num_clients)[: 2 * half].reshape(2, half)
        both = np.sort(np.concatenate([table[pairs[0]], table[pairs[1]]], axis=1), axis=1)
        lot = rng.random(both.shape)
        twice = both[:, 1:] == both[:, :-1]
        lot[:, :-1][twice] = -1.0  # what both have, one of them keeps
        lot[:, 1:][twice] = 2.0  # and the other
        both = np.take_along_axis(both, np.argsort(lot, axis=1), axis=1)
        table[pairs[0]], table[pairs[1]] = both[:, :n], both[:, n:]
    return table


def _level(room: Counts, total: int) -> Counts:
    """Rows of sum `total`, equal up to one except where there is less room than that."""
    order = np.argsort(room, axis=1, kind="stable")
    ascending = np.take_along_axis(room, order, axis=1)
    left = np.full(len(room), total)
    taken, (_, n) = np.empty_like(room), room.shape
    for i in range(n):
        taken[:, i] = np.minimum(ascending[:, i], left // (n - i))
        left -= taken[:, i]
    out = np.empty_like(room)
    np.put_along_axis(out, order, taken, axis=1)
    return out


def rounded(exact: NDArray[np.float64], total: Counts, most: Counts) -> Counts:
    """Integers with rows of sum `total`: the floor, and one more where the remainder is largest."""
    low = np.floor(exact + 1e-9).astype(np.int64)
    remainder = np.where(low < most, exact - low, -1.0)
    one_more = np.arange(low.shape[1]) < (total - low.sum(1))[:, None]
    out = np.empty_like(low)
    np.put_along_axis(out, np.argsort(-remainder, axis=1, kind="stable"), one_more, axis=1)
    return low + out
