from fl.keys import Key
from fl.run import keys, runs
from fl.run.meters import METERS, usual
from fl.run.meters.wall import Wall
from fl.run.rundir import METRICS, read_jsonl
from fl.run.runs import Options


def test_meters_read_what_they_declare():
    for meter in usual():
        meter.start()
        assert set(meter.stop()) == {key.name for key in meter.keys}
    measured = [key for meter in METERS for key in meter.keys]
    assert all(key.kind == "measured" and key.where == "round" for key in measured)
    assert {key.name for key in measured} <= set(keys.TIMING)


def test_the_wall_clock_goes_forward(monkeypatch):
    times = iter([5.0, 7.5])
    monkeypatch.setattr("fl.run.meters.wall.perf_counter", lambda: next(times))
    wall = Wall()
    wall.start()
    assert wall.stop() == {"wall_s": 2.5}


class Broken:
    """A meter that could not read anything in one round."""

    keys = (Key("joules", "of the machine", unit="J", kind="measured", null=True),)
    rounds = 0

    def start(self):
        self.rounds += 1

    def stop(self):
        return {"joules": None if self.rounds == 2 else 3.0}


def test_the_loop_puts_readings_into_lines(tiny, tmp_path):
    runs.start(tiny("num_rounds=3"), tmp_path / "run", Options(1, meters=[Wall(), Broken()]))
    lines = read_jsonl(tmp_path / "run" / METRICS)
    assert [line["joules"] for line in lines] == [3.0, None, 3.0]
    assert all(line["wall_s"] > 0 for line in lines)
    assert [*lines[0]][-3:] == ["wall_s", "joules", "train_s"]
