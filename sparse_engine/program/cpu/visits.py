"""Visits of several clients in one native call (csrc/program/visit.h)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sparse_engine.model.model import Model
from sparse_engine.program.batches import batch_size
from sparse_engine.program.cpu.session import Session, native_data, native_training, trained
from sparse_engine.program.visits import Plan, Share, Visited, Visitor
from sparse_engine.wire import form as forms
from sparsefl.kernels.layout import Bitmap
from sparsefl.kernels.native import address, extension, num_threads, placement, pointer

_KEY = 2**64
_MOST = 2**32 - 1  # entries of a tensor that a message can count


class _Turn(NamedTuple):
    """A visit that is under way: what the native code takes, and what it writes into."""

    native: tuple[Any, Any, Any, Any]
    model: Model
    norms: NDArray[np.float64] | None
    mask: Bitmap | None
    seeds: Any  # kept alive

    def ended(self, done: Any) -> Visited:
        """Return the visit with csrc/program/visit.h's Visited."""
        failed = done.failed >= 0
        return Visited(
            self.model,
            trained(done.trained),
            self.norms,
            self.model.layout.names[done.failed] if failed else self.mask,
            done.grown_on,
            None if done.bytes < 0 else done.bytes,
            done.seconds,
        )


class Visits:
    """Visits of a worker. Not for two threads at once."""

    def __init__(self, session: Session, train: Share, test: Share) -> None:
        self._session, self._train, self._test = session, train, test
        self._shares = _share(train), _share(test)
        self._memory = extension().program.VisitMemory()
        self._plans: tuple[Plan | None, dict[int, Any]] = (None, {})  # the last one, by size of batches

    def run(self, plan: Plan, visitors: Sequence[Visitor]) -> list[Visited]:
        """Take the turns of `visitors`, one after the other, in one call. One that fails is the last: those
        after it are not there."""
        made = [self._begun(plan, who) for who in visitors]
        native = extension().program.visits(
            [one.native for one in made], self._session.workspace, self._memory, num_threads()
        )
        return [one.ended(done) for one, done in zip(made, native, strict=False)]

    def _begun(self, plan: Plan, who: Visitor) -> _Turn:
        session, own, growing = self._session, who.models[0], plan.growing
        samples = self._train.count(who.k)
        batch = batch_size(plan.batch, samples, self._test.count(who.k))
        session.check_norms(samples, batch)
        program = growth = session.program(who.mask, batch)
        if growing is not None and growing.batch:
            size = min(growing.batch, samples)
            session.check_norms(size, size)
            growth = session.program(who.mask, size)
        layout, segments = own.layout, own.layout.segments
        values = torch.empty(who.mask.nnz, dtype=torch.float32)
        rest, integers = torch.empty(layout.num_floats, dtype=torch.float32), own.integers.clone()
        tensors = len(layout.float_runs) // 2
        norms = np.empty(len(segments) + tensors) if plan.origin is not None else None
        words = torch.empty(segments.num_words if growing else 0, dtype=torch.int64)
        offsets = torch.empty(len(segments) + 1 if growing else 0, dtype=torch.int64)
        first = who.first_mask or who.mask
        visitor = extension().program.Visitor(
            k=who.k,
            models=[_stored(model) for model in who.models],
            mask=pointer(who.mask.words, torch.int64),
            offsets=pointer(who.mask.offsets, torch.int64),
            first_mask=pointer(first.words, torch.int64),
            first_offsets=pointer(first.offsets, torch.int64),
            values=values.data_ptr(),
            rest=rest.data_ptr(),
            integers=integers.data_ptr(),
            words=words.data_ptr(),
            next_offsets=offsets.data_ptr(),
            norms=0 if norms is None else norms.ctypes.data,
        )
        visit, seeds = self._plan(plan, who, layout_of=own, batch=batch)
        native = program.native, growth.native, visit, visitor
        model = Model(layout, who.mask, values, rest, integers)
        return _Turn(native, model, norms, Bitmap(words, segments, offsets) if growing else None, seeds)

    def _plan(self, plan: Plan, who: Visitor, layout_of: Model, batch: int) -> tuple[Any, Any]:
        """csrc/program/visit.h's Visit, and the arrays that it points to: made once per plan and size of
        batches; anew for every client where dropouts have seeds."""
        if self._plans[0] is not plan:
            self._plans = (plan, {})
        known = self._plans[1]
        if who.seeds or who.growth_seeds or batch not in known:
            seeds = np.array(who.seeds, np.uint64), np.array(who.growth_seeds, np.uint64)
            known[batch] = self._made(plan, layout_of, batch, *seeds), seeds
        return known[batch]

    def _made(self, plan: Plan, model: Model, batch: int, seeds: Any, growth_seeds: Any) -> Any:
        native, layout, growing, origin = extension().program, model.layout, plan.growing, plan.origin
        form, sizes = forms.form(layout), layout.segments.sizes
        return native.Visit(
            segments=placement(layout.segments),
            train=self._shares[0],
            test=self._shares[1],
            training=native_training(plan.training, address(seeds, np.uint64), layout.segments),
            round=plan.round,
            epochs=plan.epochs,
            batch=batch,
            order=_key(plan.order),
            moved=plan.moved,
            padding=plan.padding,
            fraction=-1.0 if growing is None else growing.fraction,
            growth=0 if growing is None else growing.batch,
            growth_order=_key(0 if growing is None else growing.order),
            growth_seeds=address(growth_seeds, np.uint64),
            norms=self._session.has_norms,
            origin=0 if origin is None else pointer(origin.values),
            origin_rest=0 if origin is None else pointer(origin.rest),
            tensors=layout.float_runs,
            message=plan.message and max(sizes, default=0) <= _MOST,
            fingerprint=form.fingerprint,
            integers=layout.num_integers,
            weights=[at for part in form.weights for at in (part.start, part.stop)],
            vectors=[at for part in form.vectors for at in (part.start, part.stop)],
        )


def _share(share: Share) -> Any:
    data, labels = native_data(share.data)
    kind = share.indices.dtype.type
    return extension().program.Share(
        data=data,
        labels=labels,
        pointers=address(share.pointers, np.int64),
        indices=address(share.indices, kind),
        wide=share.indices.itemsize == 8,
    )


def _key(key: int) -> Any:
    return extension().program.StreamKey(low=key % _KEY, high=key // _KEY)


def _stored(model: Model) -> Any:
    """csrc/program/visit.h's Stored; made once per model."""
    return model.derived.of("stored", lambda: _made_stored(model))


def _made_stored(model: Model) -> Any:
    bitmap = model.bitmap
    return extension().program.Stored(
        words=pointer(bitmap.words, torch.int64),
        values=pointer(model.values),
        nnz=bitmap.nnz,
        rest=pointer(model.rest),
    )
