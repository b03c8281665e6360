"""A stop that Python and native code see."""

from fl.train.stop import Stop


def test_both_see_it_set_and_cleared():
    stop = Stop()
    seen = stop.flag  # native code keeps its address
    assert not stop.is_set() and not seen[0]
    stop.set()
    assert stop.is_set() and seen[0]
    stop.clear()
    assert not stop.is_set() and not seen[0] and stop.flag is seen
