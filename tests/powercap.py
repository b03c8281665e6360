"""A tree like /sys/class/powercap, whose packages burn power in somebody's time."""

from pathlib import Path


class Powercap:
    """`domains`: {folder: (name, watts)}; every counter starts at `first` joules and has that range."""

    def __init__(self, root: Path, time, domains, first=100.0, range_j=262143.328850) -> None:
        self.root, self._time, self._domains, self._born = root, time, domains, time.now()
        self._first, self._range = first, range_j
        self.denied: set[str] = set()
        self.stuck = False
        for folder, (name, _) in domains.items():
            path = root / folder
            path.mkdir(parents=True)
            (path / "name").write_text(f"{name}\n")
            (path / "max_energy_range_uj").write_text(f"{range_j * 1e6:.0f}\n")
            (path / "energy_uj").write_text("0\n")

    def read(self, path: Path) -> str:
        """Path.read_text of a file below the root."""
        if path.name != "energy_uj":
            return path.read_text()
        if path.parent.name in self.denied:
            raise PermissionError(13, "Permission denied", str(path))
        seconds = 0 if self.stuck else self._time.now() - self._born
        joules = self._first + self._domains[path.parent.name][1] * seconds
        return f"{joules % self._range * 1e6:.0f}\n"
