"""Which rounds test."""

from dataclasses import replace

import numpy as np

from fl.run import setup


def test_rounds_without_tests_train_the_same_clients(tiny):
    setting = setup.prepare(tiny("run.eval_every=3", "num_rounds=5"))
    tested = [len(setting.at(t).partition.test.indices) > 0 for t in range(5)]
    assert tested == [False, False, True, False, True]  # and the last one
    bare = setting.at(0).partition
    assert np.array_equal(bare.train.indices, setting.partition.train.indices)
    assert bare.test.sizes == {0} and not bare.test_counts.any()
    assert replace(setting, eval_every=1).at(0).partition is setting.partition


def test_some_clients_keep_their_tests(tiny):
    parts = setup.prepare(tiny()).partition
    keep = np.array([True, False, False, True])
    some = parts.tested_by(keep)
    assert [some.test.of(k).tolist() for k in range(4)] == [
        parts.test.of(k).tolist() if keep[k] else [] for k in range(4)
    ]
    assert some.test_counts[[1, 2]].sum() == 0 and (some.test_counts[0] == parts.test_counts[0]).all()
