"""A group of one: what trains a single model on a GPU, as the CPU's session does (program/cpu/session.py)."""

from sparse_engine.model.grow import Growth
from sparse_engine.model.model import Model
from sparse_engine.program.batches import Batches, Trained, Training
from sparse_engine.program.gpu.plan import NotOnGpu
from sparse_engine.program.gpu.session import GroupSession, NotFinite
from sparse_engine.program.steps import Graph
from sparsefl.kernels.layout import Bitmap


class OneClient:
    """Not for two threads at once."""

    def __init__(self, session: GroupSession) -> None:
        self._session = session

    @property
    def graph(self) -> Graph:
        return self._session.graph

    def train(self, model: Model, batches: Batches, how: Training, test: Batches | None = None) -> Trained:
        return self._session.train([model], [batches], how, None if test is None else [test])[0]

    def evaluate(self, model: Model, batches: Batches) -> int:
        return self._session.evaluate([model], [batches])[0]

    def grow(
        self, model: Model, growth: Growth, batches: Batches, seeds: tuple[int, ...] = ()
    ) -> Bitmap | str:
        """The next pattern; the name of a weight whose gradient is not finite instead."""
        try:
            return self._session.grow([model], growth.fraction, [batches])[0]
        except NotFinite as wrong:
            return wrong.name

    def gradient(self, model: Model, batches: Batches, seeds: tuple[int, ...] = ()) -> tuple[Model, Trained]:
        raise NotOnGpu("there is no GPU version of the gradient over all samples (BEER) yet")
