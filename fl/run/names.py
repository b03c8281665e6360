"""Every name that a run directory (fl/run/rundir.py) may hold, in one table.

Names that are read from a file are compared with these before anything is opened. Imports nothing of ours.
"""

import re

CONFIG = "config.toml"
PARTITION = "partition.json"
CODE = "code.json"
HISTORY = "history.json"
METRICS = "metrics.jsonl"
CLIENTS = "clients.jsonl"
METRICS_CSV = "metrics.csv"  # the lines of METRICS as a table (`--log csv`)
SUMMARY = "summary.json"
REPORT = "report.html"
FAILED = "failed.txt"  # in a comparison
PLAN = "plan.json"  # of a comparison (fl/compare/plan.py), which holds directories of runs
COMPARISON = "comparison.json"
COMPARISON_TEXT = "comparison.md"
COMPARISON_CSV = "comparison.csv"
COMPARISON_LATEX = "comparison.tex"
LOCK = ".lock"

GROWING = (METRICS, CLIENTS)  # lines are appended; checkpoints remember how far they go
FILES = (
    *(CONFIG, PARTITION, CODE, HISTORY, METRICS, METRICS_CSV, CLIENTS, SUMMARY, REPORT),
    *(FAILED, PLAN, COMPARISON, COMPARISON_TEXT, COMPARISON_CSV, COMPARISON_LATEX, LOCK),
)
DRAFTS = tuple(f".{name}.new" for name in FILES)  # of files that are written whole

CHECKPOINT = "checkpoint"
BASELINE = "baseline"
EXACT = "exact"
TENSORBOARD = "tensorboard"

STATE = "state.json"  # of a checkpoint, beside its shards
_SHARD = re.compile(r"tensors-[0-9]{5}\.safetensors")
_RECORDS = re.compile(r"records-[0-9]{5,9}-[0-9]{5}\.safetensors")
_ROUND = re.compile(r"round-([0-9]{5,9})")
_ABANDONED = re.compile(r"\.(removed-)?round-[0-9]{5,9}")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*-seed-[0-9]+")
_EVENTS = re.compile(r"events\.out\.tfevents\.[A-Za-z0-9_.-]+")


def shard(number: int) -> str:
    """A file of tensors in a checkpoint."""
    return f"tensors-{number:05}.safetensors"


def is_shard(name: str) -> bool:
    return _SHARD.fullmatch(name) is not None


def records(t: int, number: int) -> str:
    """A file of clients' records that the checkpoint of round t wrote."""
    return f"records-{t:05}-{number:05}.safetensors"


def is_records(name: str) -> bool:
    return _RECORDS.fullmatch(name) is not None


def round_folder(t: int) -> str:
    """The checkpoint of round t."""
    return f"round-{t:05}"


def round_of(folder: str) -> int | None:
    """The round of a checkpoint's folder; None: it is none."""
    found = _ROUND.fullmatch(folder)
    t = int(found[1]) if found else None
    return t if t is not None and round_folder(t) == folder else None


def removed_folder(t: int) -> str:
    """What the checkpoint of round t is called while it is removed."""
    return f".removed-{round_folder(t)}"


def draft_folder(t: int) -> str:
    """What it is called while it is written."""
    return f".{round_folder(t)}"


def is_abandoned(folder: str) -> bool:
    """Whether a process that was killed left it: half a checkpoint, or half of one that was removed."""
    return _ABANDONED.fullmatch(folder) is not None


def is_run_folder(name: str) -> bool:
    """Whether a comparison may have a run there."""
    return _RUN.fullmatch(name) is not None


def is_events_file(name: str) -> bool:
    """Whether TensorBoard may have written it."""
    return _EVENTS.fullmatch(name) is not None
