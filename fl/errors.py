"""Errors that people meet. An `Expected` one is caused by what somebody gave (a configuration, a directory,
data, a machine without memory): its message is a sentence, and fl/cli/exits.py shows it without a traceback.
Anything else that escapes is a mistake of ours, and keeps its traceback.
"""


class Expected(Exception):
    """A sentence for the user: what was expected, what came, and what to do."""

    exit_code = 1


class ConfigError(Expected, ValueError):
    """A command line or configuration is wrong. One line per problem: key, what was expected, what came."""

    exit_code = 2


class RunDirError(Expected, RuntimeError):
    """The directory of a run cannot be used."""


class UntrustedError(ConfigError):
    """A run directory names code that nobody allowed to import."""


class MixedError(RunDirError):
    """A run would go on where its numbers come out otherwise, and nobody allowed that."""


class CheckpointError(Expected, RuntimeError):
    """There is no usable checkpoint, or one could not be written."""


class StoreError(Expected, ValueError):
    """What was read from a checkpoint is not what was written."""


class Diverged(Expected, RuntimeError):
    """Training left the range of numbers."""


class Missing(Expected, RuntimeError):
    """Something that the command needs is not installed."""


class NoMeter(Missing):
    """Joules cannot be measured: which library, file or permission is missing."""


class PictureError(Expected, RuntimeError):
    """A picture could not be drawn or written."""


class Stopped(Exception):
    """Somebody asked a worker to stop."""


class Interrupted(Exception):
    """Somebody asked the run to stop; what it did until then is saved."""
