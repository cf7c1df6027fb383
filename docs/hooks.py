"""What mkdocs calls while it builds the site: the pages and pictures made from the code join those written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pages import calibrators, catalogue, commands, formulas, methods, protocols

SECTIONS = {"methods": methods.navigation, "calibrators": calibrators.navigation}
WRITTEN = {"results": [], "reproduction": ["reproducing.md"]}
"""Folders of pages that commands write, and what comes before them."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the made pages where the navigation names their section or folder."""
    nav: list[Any] = []
    for entry in config.nav or []:
        ((title, target),) = entry.items()
        if isinstance(target, str) and target in SECTIONS:
            target = SECTIONS[target]()
        elif isinstance(target, str) and target in WRITTEN:
            pages = sorted(Path(config.docs_dir, target).glob("*.md"))
            target = [*WRITTEN[target], *(f"{target}/{path.name}" for path in pages)]
        nav.append({title: target})
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is made from the code; nothing is written beside the sources."""
    for name, content in {**methods.files(), **calibrators.files(), **commands.files()}.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the tables of metrics and of protocols where a page asks for them, and set formulas."""
    filled = markdown.replace(protocols.PLACE, protocols.table()).replace(catalogue.PLACE, catalogue.table())
    return formulas.typeset(filled)
