"""Files that grow: what a checkpoint has seen of them cannot be changed unseen."""

import hashlib

import pytest

from fl.errors import RunDirError
from fl.run import runs
from fl.run.events import Listener
from fl.run.growing import NOTHING, Growing, Mark
from fl.run.runs import Interrupted, Options


def test_marks_are_of_what_was_written(tmp_path):
    file = Growing(tmp_path, "x")
    assert file.mark == NOTHING
    file.append(b"abc")
    first = file.mark
    file.append(b"def")
    assert first == Mark(3, hashlib.sha256(b"abc").hexdigest())
    assert file.mark == Mark(6, hashlib.sha256(b"abcdef").hexdigest())
    again = Growing(tmp_path, "x")  # another process
    again.cut(first)
    again.append(b"d")
    assert (tmp_path / "x").read_bytes() == b"abcd" and again.mark.sha256 == hashlib.sha256(
        b"abcd"
    ).hexdigest()


class Stop(Listener):
    def round_started(self, t):
        if t == 3:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["metrics.jsonl", "clients.jsonl"])
@pytest.mark.parametrize("finished", [False, True])
def test_a_changed_digit_is_refused_before_training(tiny, tmp_path, name, finished):
    """Whether the run would go on or is finished; a digit of an accuracy would be somebody's result."""
    path = tmp_path / "run"
    if finished:
        runs.start(tiny("num_rounds=2"), path, Options(1))
    else:
        with pytest.raises(Interrupted):
            runs.start(tiny(), path, Options(1, Stop()))
    text = (path / name).read_text()
    at = text.index('"accuracy') + text[text.index('"accuracy') :].index("0.") + 2
    (path / name).write_text(text[:at] + str((int(text[at]) + 5) % 10) + text[at + 1 :])
    with pytest.raises(
        RunDirError, match=rf"bytes of .*{name} as the run wrote them, got others: the record"
    ):
        runs.resume(path, Options(1))


@pytest.mark.parametrize("junk", [b"\x00", b"x", b"{"])
def test_damage_of_the_first_byte_is_refused_before_training(tiny, tmp_path, junk):
    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        runs.start(tiny(), path, Options(1, Stop()))
    data = (path / "metrics.jsonl").read_bytes()
    (path / "metrics.jsonl").write_bytes(junk + data[1:] if junk != b"{" else b" " + data[1:])
    with pytest.raises(RunDirError, match="as the run wrote them, got others"):
        runs.resume(path, Options(1))
