"""Listeners that write the figures of rounds where people look at them: `--log csv,tensorboard,wandb,mlflow`.

From Python: `fl.run(..., listeners=[fl.CSV()])`. A listener of one's own is a subclass of `fl.Listener`
(fl/run/events.py). Packages that these need are imported when they are made, so that a run does not start in
vain.
"""

import csv
import importlib
import io
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fl import config as configs
from fl.config import Config
from fl.errors import ConfigError, Missing
from fl.run import files
from fl.run.events import Listener, Record
from fl.run.names import METRICS, METRICS_CSV, TENSORBOARD

_PARAMETERS = 100  # that MLflow takes at a time


def made(names: str) -> list[Listener]:
    """Return the loggers of "csv,wandb". ConfigError: no such logger. Missing: no such package."""
    wanted = dict.fromkeys(name.strip() for name in names.split(","))
    for name in wanted:
        if name not in LOGS:
            raise ConfigError(f"--log: expected one of {list(LOGS)}, got {name!r}")
    return [LOGS[name]() for name in wanted]


def cells(record: Record) -> dict[str, Any]:
    """A line of metrics.jsonl without folders: {"loss": 0.5, "layer_density/conv1.weight": 0.25}."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}/{name}": inner for name, inner in value.items()}
        else:
            flat[key] = value
    return flat


def numbers(record: Record) -> dict[str, float]:
    """Return those of `cells` that are numbers, without the round."""
    return {
        key: value
        for key, value in cells(record).items()
        if isinstance(value, int | float) and key != "round"
    }


class CSV(Listener):
    """DIR/metrics.csv: the lines of metrics.jsonl as a table, a row as each round ends; null is an empty
    cell. Of a run that is resumed, the rounds before are in it too.

    >>> import fl, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     changes = {"num_rounds": 2, "training.epochs": 1}
    ...     result = fl.run("demo", set=changes, out=folder, listeners=[fl.CSV()])
    ...     [line[:20] for line in (pathlib.Path(folder) / "metrics.csv").read_text().splitlines()][0]
    'round,accuracy_mean,'
    """

    def __init__(self) -> None:
        self._path, self._names = Path(), list[str]()

    def run_started(self, config: Config, path: Path | None, first: int) -> None:
        self._path, self._names = _directory(path, "metrics.csv"), []
        there = files.each_line(self._path, METRICS) if files.exists(self._path, METRICS) else ()
        text = "".join(self._text(line) for line in there if line["round"] < first)
        files.write_atomic(self._path / METRICS_CSV, text.encode())

    def round_finished(self, record: Record) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with os.fdopen(files.open_file(self._path, METRICS_CSV, flags), "ab") as file:
            file.write(self._text(record).encode())

    def _text(self, record: Record) -> str:
        """Its row, after the names of columns if it is the first."""
        row, text = cells(record), io.StringIO()
        if not self._names:
            self._names = [*row]
            csv.writer(text).writerow(self._names)
        csv.writer(text).writerow([row.get(name) for name in self._names])
        return text.getvalue()


class TensorBoard(Listener):
    """Every number of metrics.jsonl as a curve, under DIR/tensorboard. Missing: there is no TensorBoard.

    >>> import fl
    >>> log = fl.TensorBoard()                                          # needs 'sparsefl[tensorboard]'
    >>> fl.run("demo", out="runs/mine", listeners=[log])                # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._make = _package(
            "torch.utils.tensorboard", "tensorboard", "'sparsefl[tensorboard]'"
        ).SummaryWriter
        self._writer: Any = None

    def run_started(self, config: Config, path: Path | None, first: int) -> None:
        folder = _directory(path, "TensorBoard") / TENSORBOARD
        files.is_folder(folder)  # or nothing: a link would lead elsewhere
        # purge_step hides what a run that is resumed here wrote after its checkpoint
        self._writer = self._make(folder, purge_step=first)

    def round_finished(self, record: Record) -> None:
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, record["round"])
        self._writer.flush()

    def run_stopped(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WandB(Listener):
    """A run of Weights & Biases, in the project `sparsefl` unless WANDB_PROJECT names another. What is
    resumed is a run of its own there, of the same group, which begins with the round that came next.
    Missing: there is no package wandb.

    >>> import fl
    >>> log = fl.WandB()                                                # needs wandb
    >>> result = fl.run("demo", set={"num_rounds": 1, "training.epochs": 1}, listeners=[log])
    """

    def __init__(self) -> None:
        self._wandb = _package("wandb")
        self._run: Any = None

    def run_started(self, config: Config, path: Path | None, first: int) -> None:
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "sparsefl"),
            name=_title(config, first),
            group=config.name if path is None else path.name,
            config=configs.plain(config),
        )

    def round_finished(self, record: Record) -> None:
        self._run.log(numbers(record), step=record["round"])

    def run_stopped(self) -> None:
        if self._run is not None:
            self._run.finish()


class MLflow(Listener):
    """A run of MLflow, where MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say; settings are its parameters.
    What is resumed is a run of its own there, which begins with the round that came next. Missing: there is
    no package mlflow.

    >>> import fl
    >>> log = fl.MLflow()                                               # needs mlflow
    >>> result = fl.run("demo", set={"num_rounds": 1, "training.epochs": 1}, listeners=[log])
    """

    def __init__(self) -> None:
        self._mlflow = _package("mlflow")
        self._running = False

    def run_started(self, config: Config, path: Path | None, first: int) -> None:
        self._mlflow.start_run(run_name=_title(config, first))
        self._running = True
        settings = [*_settings(configs.plain(config))]
        for i in range(0, len(settings), _PARAMETERS):
            self._mlflow.log_params(dict(settings[i : i + _PARAMETERS]))

    def round_finished(self, record: Record) -> None:
        self._mlflow.log_metrics(numbers(record), step=record["round"])

    def run_stopped(self) -> None:
        if self._running:
            self._mlflow.end_run()
            self._running = False


LOGS: dict[str, Callable[[], Listener]] = {
    "csv": CSV,
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def _package(module: str, name: str = "", install: str = "") -> Any:
    name = name or module
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise Missing(f"expected the package {name}, got none: pip install {install or name}") from missing


def _directory(path: Path | None, what: str) -> Path:
    if path is None:
        raise ConfigError(f"expected a directory of the run for {what}, got none: name one with out")
    return path


def _title(config: Config, first: int) -> str:
    return config.name + (f", from round {first}" if first else "")


def _settings(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """("training.lr", 0.1) ..."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
