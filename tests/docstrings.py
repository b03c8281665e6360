"""Examples in docstrings: those that a thing has, and what goes wrong when they run."""

import doctest
import inspect


def examples(name, thing, known=None):
    """`known`: names that they may use; none, unless given."""
    return doctest.DocTestParser().get_doctest(inspect.getdoc(thing) or "", known or {}, name, None, None)


def failures(test):
    """How many failed, and what they said."""
    said = []
    return doctest.DocTestRunner(verbose=False).run(test, out=said.append).failed, "".join(said)
