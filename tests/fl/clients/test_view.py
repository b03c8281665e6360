"""A part of every client: read when it is asked for, and only then."""

from fl.clients.memory import InMemory
from fl.clients.view import View


def test_a_part_is_read_when_it_is_asked_for():
    asked = []

    def part(client):
        asked.append(client)
        return client.upper()

    view = View(InMemory("abc"), part)
    assert len(view) == 3 and asked == []
    assert view[1] == "B" and asked == ["b"]
    each = iter(view)
    assert next(each) == "A" and asked == ["b", "a"]
    assert [*view] == ["A", "B", "C"] == [*view]
