"""Work: outcomes by client, whatever the order; reports that add up."""

import pytest
from fakes import Serial, Trainer

from fl.train.report import Done, Report
from fl.train.work import collect


@pytest.mark.parametrize("backwards", [False, True])
def test_results_are_in_the_order_of_tasks(backwards):
    executor = Serial(Trainer(), backwards)
    tasks = {4: "a", 1: "b", 3: "c"}
    reports = {4: Report(flop=4), 1: None, 3: Report(flop=3)}
    found = collect(executor, lambda trainer, k, task: Done(task * 2, reports[k]), tasks)
    assert [*found.values.items()] == [(4, "aa"), (1, "bb"), (3, "cc")]
    assert [*found.reports.items()] == [(4, Report(flop=4)), (3, Report(flop=3))]  # client 1 has none


def test_work_is_added_and_what_was_seen_stays():
    own = Report(accuracy=0.5, accuracy_before=0.25, loss=2.0, samples=40, flop=1, flop_dense=2, train_s=3.0)
    other = Report(accuracy=0.1, loss=9.0, samples=1, flop=10, flop_dense=20, train_s=30.0)
    assert own.plus(other) == Report(
        accuracy=0.5, accuracy_before=0.25, loss=2.0, samples=40, flop=11, flop_dense=22, train_s=33.0
    )
