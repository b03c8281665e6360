"""Errors that people cause and can mend: their message is a sentence. Others keep their traceback."""


class SettingError(ValueError):
    """An environment variable, or the file that it names, is wrong."""


class NotBuilt(RuntimeError):
    """There is no compiled module, and something was to run on it."""


class NoKernel(RuntimeError):
    """A backend was asked for that has no kernel of an operation."""
