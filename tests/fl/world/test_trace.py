"""Traces of devices: what a file may say, and where it is wrong."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl import config
from fl.errors import ConfigError
from fl.world import trace
from fl.world.devices import draw

GOOD = """client,speed,bandwidth,hours_online,period_hours
# a comment, and a blank line

1, 0.5, 5e6, never, 24
0, 2, 1e7, 0-6.5; 22-24, 24
2, 1, 1e6, 1-2, 3
7, 1, 1, always, 24
"""


def write(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_by_hand(tmp_path):
    found = trace.read(write(tmp_path, GOOD), 3)
    assert found.speed.tolist() == [2, 0.5, 1] and found.bandwidth.tolist() == [1e7, 5e6, 1e6]
    there = {hour: found.online.at(hour).tolist() for hour in (0, 1, 2, 6.4, 6.5, 22, 25)}
    assert there == {
        0: [True, False, False],
        1: [True, False, True],  # the third is online in hours 1, 4, 7, ...: its period is 3
        2: [True, False, False],
        6.4: [True, False, False],
        6.5: [False, False, False],
        22: [True, False, True],
        25: [True, False, True],
    }


def test_a_day_is_the_period_unless_a_column_says_so(tmp_path):
    online = trace.read(write(tmp_path, "client,hours_online\n0,0-12\n1,always\n"), 2).online
    assert online.at(25).tolist() == [True, True] and online.at(36).tolist() == [False, True]


def test_devices_of_a_trace(tmp_path):
    model = config.Devices(kind="trace", trace=str(write(tmp_path, GOOD)))
    devices = draw(model, 3, t=5)
    assert devices.flop_rate.tolist() == [32e12, 8e12, 16e12]
    assert devices.bandwidth.tolist() == [1e7, 5e6, 1e6]
    alone = draw(config.Devices(kind="trace", trace=str(write(tmp_path, "client,speed\n0,2\n"))), 1)
    assert alone.bandwidth.tolist() == [1e9]


def test_spreadsheets_write_a_mark_and_other_ends_of_lines(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes("\ufeffclient,speed\r\n0,2\r\n".encode())
    assert trace.read(path, 1).speed.tolist() == [2]


def test_a_file_that_changed_is_read_again(tmp_path):
    path = write(tmp_path, "client,speed\n0,2\n")
    assert trace.read(path, 1).speed.tolist() == [2]
    write(tmp_path, "client,speed\n0,17\n")
    assert trace.read(path, 1).speed.tolist() == [17]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "trace.csv: expected a line with the names of columns"),
        ("speed\n1\n", r"trace.csv, line 1: expected client and others .* got \['speed'\]"),
        ("client,sped\n0,1\n", "line 1: .*sped"),
        ("client,speed,speed\n0,1,1\n", "line 1: .*each once"),
        ("client,speed\n0,1\n\n1\n", "trace.csv, line 4: expected 2 values, got 1"),
        ("client,speed\n-1,1\n", "line 2: expected the number of a client, from 0, got '-1'"),
        ("client,speed\n0,1\n0,1\n", "line 3: expected client 0 once, got it in line 2 too"),
        ("client,speed\n0,0\n", "line 2: expected speed above 0, .* got '0'"),
        ("client,speed\n0,nan\n", "line 2: expected speed"),
        ("client,speed\n0,inf\n", "line 2: expected speed"),
        ("client,bandwidth\n0,\n", "line 2: expected bandwidth above 0, .* got ''"),
        ("client,period_hours,hours_online\n0,-1,always\n", "line 2: expected period_hours"),
        ("client,hours_online\n0,\n", "line 2: expected hours_online"),
        ("client,hours_online\n0,5\n", "line 2: expected hours_online"),
        ("client,hours_online\n0,6-5\n", "line 2: expected hours_online"),
        ("client,hours_online\n0,5-5\n", "line 2: expected hours_online"),
        ("client,hours_online\n0,5-8;7-9\n", "line 2: expected hours_online"),
        ("client,hours_online\n0,20-25\n", "from 0 to 24, got '20-25'"),
        ("client,hours_online\n0,nan-5\n", "line 2: expected hours_online"),
        ("client,speed\n1,1\n", "trace.csv: expected a line for each of 2 clients, got none for 0"),
    ],
)
def test_errors_name_file_and_line(tmp_path, text, told):
    with pytest.raises(ConfigError, match=told):
        trace.read(write(tmp_path, text), 2)


def test_no_text_and_no_file(tmp_path):
    with pytest.raises(ConfigError, match=r"expected a trace of devices, got .*none.csv: No such file"):
        trace.read(tmp_path / "none.csv", 1)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="expected a trace of devices as CSV"):
        trace.read(tmp_path / "binary.csv", 1)


def test_columns_that_are_needed(tmp_path):
    path = str(write(tmp_path, "client\n0\n"))
    with pytest.raises(ConfigError, match=r"devices.trace: expected a column speed or bandwidth"):
        draw(config.Devices(kind="trace", trace=path), 1)
    with pytest.raises(config.ConfigError, match="expected the name of a file as trace"):
        config.section(config.Devices, {"kind": "trace"})


@given(st.lists(st.tuples(st.integers(0, 23), st.integers(1, 24)), min_size=1, max_size=6), st.floats(0, 100))
def test_online_is_what_the_intervals_say(tmp_path_factory, spans, hour):
    apart, last = [], 0
    for begin, length in sorted(spans):
        if begin >= last and begin + length <= 24:
            apart.append((begin, begin + length))
            last = begin + length
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    text = ";".join(f"{a}-{b}" for a, b in apart) or "never"
    path.write_text(f"client,hours_online\n0,{text}\n")
    wanted = any(a <= hour % 24 < b for a, b in apart)
    assert np.array_equal(trace.read(path, 1).online.at(hour), [wanted])
