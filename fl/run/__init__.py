"""One run: the loop, its directory, checkpoints, metrics and who is told of them.

The package can be called: `fl.run("demo", ...)` is fl.run.simulation.run, which has the arguments.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from fl.run.simulation import run

        return run(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
