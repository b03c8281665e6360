"""The one place that turns what goes wrong in a command into a sentence and an exit code.

0    done
1    it could not be done: a damaged directory, a full disk, no memory, training that diverged
2    wrong use: an option, a key, a value or an environment variable
130  stopped by Ctrl-C or SIGTERM
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from fl.config import code
from fl.errors import Expected, Interrupted

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130


def guarded(console: Console, work: Callable[[], int], again: Callable[[], str | None] = lambda: None) -> int:
    """The exit code of `work`, or of what stopped it, which is printed. Environment variables come first.

    `again` returns the command that goes on after an interrupt; None: nothing was begun.
    """
    try:
        with stopped_by_signals():
            check_variables()
            return work()
    except Expected as wrong:
        return failed(console, str(wrong), wrong.exit_code)
    except (Interrupted, KeyboardInterrupt):
        command = again()
        return failed(console, f"stopped; continue with: {command}" if command else "stopped", INTERRUPTED)
    except MemoryError as wrong:
        return failed(console, f"out of memory: {wrong}" if str(wrong) else "out of memory", FAILED)
    except OSError as wrong:
        return failed(console, str(wrong), FAILED)
    except Exception as wrong:
        if (known := _of_the_engine(wrong) or _of_the_user(wrong)) is None:
            raise
        return failed(console, *known)


def check_variables() -> None:
    """Raise where one of our environment variables is wrong. Without any, no command waits for torch here."""
    if any(name.startswith("SPARSE_") for name in os.environ):
        import sparse_engine as se

        se.check_settings()


def _of_the_engine(error: Exception) -> tuple[str, int] | None:
    """Sentence and exit code of an error of sparse_engine or torch that a user can mend."""
    import sparse_engine as se  # here, because torch comes with it

    if isinstance(error, se.SettingError):
        return str(error), WRONG_USE
    if isinstance(error, se.NotBuilt | se.NoKernel):
        return str(error), FAILED
    sentence = se.out_of_memory(error)
    return None if sentence is None else (f"out of memory: {sentence}", FAILED)


def _of_the_user(error: Exception) -> tuple[str, int] | None:
    """Sentence and exit code of an error that code of the user's own raised."""
    sentence = code.blamed(error)
    return None if sentence is None else (f"expected code that runs through, got {sentence}", FAILED)


def failed(console: Console, text: str, code: int) -> int:
    """Print why the command ends, on standard error: a pipe does not swallow it. Returns `code`."""
    errors = Console(stderr=True) if console.file is sys.stdout else console
    say(errors, text, "" if code == INTERRUPTED else "red")
    return code


def say(console: Console, text: str, style: str = "") -> None:
    """Print `text` letter by letter: nothing in it is markup, an emoji or a place to break the line."""
    console.print(Text(text, style), soft_wrap=True)


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """SIGTERM stops a run like Ctrl-C: with everything that is finished on disk."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
