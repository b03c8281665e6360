"""A hook of mkdocs: entries of the navigation whose page does not exist are left out, and said."""

import logging
from pathlib import Path

log = logging.getLogger("mkdocs.hooks.docs_nav")


def on_config(config):
    config.nav = kept(config.nav, Path(config.docs_dir))
    return config


def kept(entries: list, folder: Path) -> list:
    found = []
    for entry in entries:
        ((title, what),) = entry.items()
        if isinstance(what, list):
            found.append({title: kept(what, folder)})
        elif (folder / what).exists():
            found.append(entry)
        else:
            log.info("no page %s: left out of the navigation", what)
    return found
