"""Run directories as an enemy would write them: every name, size and type mutated, checksums made to fit.

    python tests/fuzz_rundir.py 2000 [seed]

Each case is a copy of a small run (interrupted or finished) or comparison with something changed in it, which
is then resumed and reported by the commands a user would give. None may touch anything outside its directory,
end in a traceback, or hang.
"""

import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from rich.console import Console

from fl import config
from fl.cli import compare
from fl.cli import run as run_command
from fl.errors import Interrupted
from fl.report import page
from fl.run import checkpoint, loop, runs
from fl.run.events import Listener
from fl.run.rundir import RunDir

TINY = """
name = "tiny"
num_clients = 3
num_rounds = 4
[data]
train_per_client = 16
test_per_client = 10
[model]
name = "mlp"
hidden = [8]
[training]
epochs = 1
batch_size = 16
[topology]
degree = 2
"""
ROUNDS = 6  # that a case may train: a run that somebody made longer is stopped, as by Ctrl-C
SECONDS = 20  # that a case may take
MEMORY = 3 << 30  # bytes of address space that a case may take beyond what there is
JSON_FILES = ("partition.json", "summary.json", "history.json", "plan.json", "comparison.json")
LINES = ("metrics.jsonl", "clients.jsonl")
EVERY = ("config.toml", "state.json", "tensors-00000.safetensors", *JSON_FILES, *LINES)


class StopAt(Listener):
    """Ctrl-C when round t begins."""

    def __init__(self, t: int) -> None:
        self.t = t

    def round_started(self, t: int) -> None:
        if t == self.t:
            raise KeyboardInterrupt


def originals(root: Path) -> list[Path]:
    """A run of which two rounds are done, a finished one, and a comparison."""
    root.mkdir(parents=True)
    file = root / "tiny.toml"
    file.write_text(TINY)
    try:
        runs.start(config.load(file), root / "begun", runs.Options(1, StopAt(2)))
    except Interrupted:
        pass
    runs.start(config.load(file), root / "done", runs.Options(1))
    given = compare.Arguments(str(file), "da_dpfl", out=root / "all", workers=1)
    assert compare.run(Console(quiet=True), given) == 0
    for report in root.rglob("report.html"):
        report.unlink()
    return [root / name for name in ("begun", "begun", "begun", "done", "all")]


class Case:
    """One directory with one thing changed, in a tree of files that nothing may touch."""

    def __init__(self, original: Path, place: Path, seed: int) -> None:
        self.draw, self.done = random.Random(seed), "nothing"
        self.outer, self.run = place, place / "runs" / "run"
        shutil.copytree(original, self.run, symlinks=True)
        (place / "victim.txt").write_text("precious\n" * 30)
        (place / "folder").mkdir()
        (place / "folder" / "round-00009").mkdir()
        (place / "folder" / "metrics.jsonl").write_text('{"round": 0}\n')
        self.before = snapshot(place, self.run)

    def mutate(self) -> None:
        self.draw.choice([self._values, self._values, self._values, self._values, self._kind, self._config])()

    def unharmed(self) -> bool:
        return snapshot(self.outer, self.run) == self.before

    def _files(self, names: tuple[str, ...]) -> list[Path]:
        return sorted(path for path in self.run.rglob("*") if path.name in names and path.is_file())

    def _values(self) -> None:
        """Values and names inside a file; what covers it gets checksums that fit."""
        file = self.draw.choice(self._files(EVERY))
        self.done = f"values of {file.name}"
        if file.name == "config.toml":
            return self._config()
        if file.name.endswith(".safetensors"):
            self._header(file)
        elif file.name in LINES:
            self._lines(file)
        else:
            tree = json.loads(file.read_text())
            body = tree["body"] if file.name == "state.json" else tree
            if self.draw.random() < 0.4 and file.name == "state.json":
                part = self.draw.choice(["marks", "files", "history", "state"])
                body[part] = self._changed(body[part])
            else:
                body = self._changed(body)
            if file.name == "state.json":
                write_state(file, body)
            else:
                file.write_text(self._text(body))
        return None

    def _lines(self, file: Path) -> None:
        rows = [json.loads(row) for row in file.read_text().splitlines()]
        if rows:
            i = self.draw.randrange(len(rows))
            rows[i] = self._changed(rows[i])
        how = self.draw.randrange(6)
        if how == 0:
            self.draw.shuffle(rows)
        elif how == 1:
            rows = rows + rows[-1:]
        file.write_text("".join(self._text(row) + "\n" for row in rows))
        if self.draw.random() < 0.8:
            self._marked(file)

    def _marked(self, file: Path) -> None:
        """Checkpoints get the mark of what is in `file` now."""
        data = file.read_bytes()
        for state in file.parent.glob("checkpoint/round-*/state.json"):
            body = json.loads(state.read_text())["body"]
            body["marks"][file.name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            write_state(state, body)

    def _header(self, file: Path) -> None:
        data = file.read_bytes()
        length = int.from_bytes(data[:8], "little")
        if self.draw.random() < 0.7:
            head = self._text(self._changed(json.loads(data[8 : 8 + length]))).encode(errors="replace")
            data = len(head).to_bytes(8, "little") + head + data[8 + length :]
        else:
            at = self.draw.randrange(len(data))
            data = data[:at] + self.draw.randbytes(self.draw.choice([1, 4, 8])) + data[at + 8 :]
        file.write_bytes(data)
        state = file.parent / "state.json"
        body = json.loads(state.read_text())["body"]
        told = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        write_state(state, body | {"files": {file.name: told}})

    def _config(self) -> None:
        """A line of config.toml, and in most cases of what the checkpoints say it was."""
        file = self.draw.choice(self._files(("config.toml",)))
        self.done = "values of config.toml"
        rows = file.read_text().splitlines()
        i = self.draw.randrange(len(rows))
        key, equals, _ = rows[i].partition(" = ")
        words = ["-1", "0", "1e308", "nan", "inf", "[]", "{}", "true", '"none"', "2147483647", "9" * 400]
        texts = [json.dumps(text) for text in self._texts()]
        rows[i] = (
            f"{key} = {self.draw.choice(words + texts)}" if equals else self.draw.choice(["", "[x]", "="])
        )
        text = "\n".join(rows) + "\n"
        file.write_text(text, errors="replace")
        if self.draw.random() < 0.7:
            for state in file.parent.glob("checkpoint/round-*/state.json"):
                write_state(state, json.loads(state.read_text())["body"] | {"config": text})

    def _kind(self) -> None:
        """Something else in place of a file or folder, or in the way of a temporary one."""
        there = [path for path in self.run.rglob("*") if not path.is_symlink()]
        ways = [self.run / f".{name}.new" for name in ("summary.json", "history.json", "report.html")]
        ways += [self.run / name for name in (".lock", "baseline", "tensorboard", "failed.txt")]
        ways += [
            self.run / "checkpoint" / name for name in (".round-00002", ".removed-round-00000", "round-²")
        ]
        path = self.draw.choice(there + ways)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        kinds: list[Callable[[], object]] = [
            lambda: path.symlink_to(self.outer / "victim.txt"),
            lambda: path.symlink_to(self.outer / "folder"),
            lambda: path.symlink_to("/dev/zero"),
            lambda: os.mkfifo(path),
            path.mkdir,
            lambda: path.write_bytes(self.draw.randbytes(100)),
            lambda: path.write_bytes(b""),
            lambda: sparse(path),
            lambda: None,
        ]
        i = self.draw.randrange(len(kinds))
        kinds[i]()
        self.done = f"{('link', 'link', 'link', 'pipe', 'folder', 'noise', 'nothing', 'hole', 'gone')[i]}"

    def _changed(self, tree: object) -> object:
        """`tree` with one node of it replaced, renamed or removed."""
        nodes = [*_nodes(tree)]
        for _ in range(self.draw.choice([1, 1, 1, 2])):
            parent, key = self.draw.choice(nodes)
            if parent is None:
                return self._value()
            how = self.draw.randrange(6)
            try:
                if how == 0:
                    del parent[key]
                elif how == 1 and isinstance(parent, dict):
                    parent[self.draw.choice(self._texts())] = parent.pop(key)
                elif how == 2 and isinstance(parent, list):
                    parent.append(parent[key])
                else:
                    parent[key] = self._value()
            except (KeyError, IndexError, TypeError):
                pass  # a node that the first change took away
        return tree

    def _value(self) -> object:
        deep: object = 0
        for _ in range(self.draw.choice([3, 300])):
            deep = [deep] if self.draw.random() < 0.5 else {"items": [deep]}
        numbers = [-1, 0, 1, 2**31, 2**63 - 1, 2**63, 10**25, 10**40, 0.5, -1e300, 1e308, True, False]
        others = [
            None,
            [],
            {},
            deep,
            float("nan"),
            float("inf"),
            [None] * 50,
            {"state": "0"},
            {"bitmap": "1"},
        ]
        return self.draw.choice([*numbers, *others, *self._texts()])

    def _texts(self) -> list[str]:
        return [
            str(self.outer / "victim.txt"), "../../victim.txt", "../../folder", "/dev/zero", "/etc/passwd",
            "", ".", "..", "x" * 10_000, "a\x00b", "\ud800", "<script>", "[/red]", "mlp", "²",
        ]  # fmt: skip

    def _text(self, value: object) -> str:
        return json.dumps(value)


def write_state(file: Path, body: object) -> None:
    """state.json with a checksum that fits: it is no signature."""
    try:
        digest = checkpoint._digest(body)  # type: ignore[arg-type]
    except Exception:  # nothing that a digest is made of
        digest = "0" * 64
    file.write_text(json.dumps({"sha256": digest, "body": body}))


def sparse(path: Path) -> None:
    """A file that says it has 8 TB."""
    path.touch()
    os.truncate(path, 1 << 43)


def _nodes(tree: object) -> Iterator[tuple]:
    yield None, None
    left = [tree]
    while left:
        node = left.pop()
        keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            yield node, key
            left.append(node[key])  # type: ignore[index]


def snapshot(outer: Path, but: Path) -> dict:
    """Everything below `outer` except the run: names, kinds, contents, times."""
    found = {}
    for path in sorted(outer.rglob("*")):
        if path == but or but in path.parents:
            continue
        info = path.lstat()
        data = path.read_bytes() if path.is_file() else None
        times = None if path == but.parent else info.st_mtime_ns
        found[str(path)] = info.st_mode, data, times
    return found


class Watch:
    """Sees every file that Python opens, changes or removes while it is on."""

    EVENTS = {
        "open": (0,), "os.truncate": (0,), "os.remove": (0,), "os.rename": (0, 1), "os.rmdir": (0,),
        "os.mkdir": (0,), "os.link": (0, 1), "os.symlink": (1,), "shutil.rmtree": (0,), "os.chmod": (0,),
    }  # fmt: skip
    _only: "Watch | None" = None

    def __init__(self) -> None:
        self.outer: Path | None = None
        self.inside: Path | None = None
        self.touched: list[str] = []
        if Watch._only is None:  # a hook cannot be taken away
            sys.addaudithook(lambda event, args: Watch._only and Watch._only._hear(event, args))
        Watch._only = self

    @contextmanager
    def on(self, case: Case) -> Iterator[None]:
        self.outer, self.inside, self.touched = case.outer, case.run, []
        try:
            yield
        finally:
            self.outer = None

    def _hear(self, event: str, args: tuple) -> None:
        if self.outer is None or event not in self.EVENTS or self.inside is None:
            return
        for i in self.EVENTS[event]:
            path = args[i]
            if isinstance(path, bytes | str | os.PathLike):
                text = os.fsdecode(path)
                writes = event != "open" or bool(
                    args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
                )
                if self._is_outside(text, writes):
                    self.touched.append(f"{event} {text}")

    def _is_outside(self, text: str, writes: bool) -> bool:
        if not os.path.isabs(text):  # below a handle, in which names have no way up
            return "/" in text or text == ".."
        path = os.path.normpath(text)
        inside = path == str(self.inside) or path.startswith(f"{self.inside}/")
        above = path == str(self.inside.parent) if self.inside else False  # brought to disk
        if inside or (above and not writes):
            return False
        return (
            writes and path != "/dev/null" or path.startswith((f"{self.outer}/", "/dev/zero", "/etc/passwd"))
        )


class Hangs(BaseException):
    """A case took too long."""


@contextmanager
def limits() -> Iterator[None]:
    """No case trains long, hangs, or takes all memory; the page of a report is short."""
    real_round, real_page = loop.Run._round, (page.get_plotlyjs, page.dressed)
    before, count = resource.getrlimit(resource.RLIMIT_AS), 0

    def counted(self, *given):  # type: ignore[no-untyped-def]
        nonlocal count
        count += 1
        if count > ROUNDS:
            raise KeyboardInterrupt
        return real_round(self, *given)

    def new_case() -> None:
        nonlocal count
        count = 0

    def rang(*_: object) -> None:
        raise Hangs

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    old = signal.signal(signal.SIGALRM, rang)
    loop.Run._round = counted  # type: ignore[method-assign]
    page.get_plotlyjs, page.dressed = lambda: "", lambda figure, *_: figure  # no looks: they take long
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    limits.new_case = new_case  # type: ignore[attr-defined]
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, old)
        resource.setrlimit(resource.RLIMIT_AS, before)
        loop.Run._round = real_round  # type: ignore[method-assign]
        page.get_plotlyjs, page.dressed = real_page


def commands(run: Path) -> list[int]:
    """Resume and report, as a user would: the exit codes."""
    console = Console(quiet=True)
    if os.path.lexists(run / "plan.json"):
        given = compare.Arguments(resume=run, workers=1)
        return [compare.run(console, given), run_command.show_report(console, run)]
    given = run_command.Arguments(resume=run, workers=1)
    return [run_command.run(console, given), run_command.show_report(console, run)]


def go(count: int, seed: int, place: Path, told: Callable[[str], object] = print) -> Counter:
    """How many cases went how. AssertionError, after all: what went wrong."""
    tally: Counter = Counter()
    wrong: list[str] = []
    made, watch = originals(place / "originals"), Watch()
    with limits():
        for i in range(count):
            case = Case(made[i % len(made)], place / "case", seed * 1_000_003 + i)
            case.mutate()
            limits.new_case()  # type: ignore[attr-defined]
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            try:
                with watch.on(case), redirect_stderr(io.StringIO()):  # sentences are many
                    codes = commands(case.run)
                tally["accepted" if codes == [0, 0] else "refused"] += 1
            except Hangs:
                wrong.append(f"case {i}: {case.done}: hangs")
            except Exception as escaped:
                wrong.append(f"case {i}: {case.done}: {type(escaped).__name__}: {str(escaped)[:200]}")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if watch.touched or not case.unharmed():
                wrong.append(f"case {i}: {case.done}: touched {watch.touched[:3] or 'what it may not'}")
            tally[case.done] += 1
            RunDir(case.run).close()
            shutil.rmtree(case.outer)
    for one in wrong:
        told(one)
    assert not wrong, f"{len(wrong)} of {count} cases: {wrong[0]}"
    return tally
