"""What mkdocs calls while it builds the site: the pages and pictures made from the code join those written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pages import calibrators, catalogue, commands, methods, protocols

SECTIONS = {"methods": methods.navigation, "calibrators": calibrators.navigation}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the made pages where the navigation names their section, and the results, of which commands write pages."""
    nav: list[Any] = []
    for entry in config.nav or []:
        ((title, target),) = entry.items()
        made = isinstance(target, str) and target in SECTIONS
        nav.append({title: SECTIONS[target]() if made else target})
    for title, folder in (("Results", "results"), ("The paper, reproduced", "reproduction")):
        pages = sorted(Path(config.docs_dir, folder).glob("*.md"))
        nav.insert(-1, {title: [f"{folder}/{path.name}" for path in pages]})
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is made from the code; nothing is written beside the sources."""
    for name, content in {**methods.files(), **calibrators.files(), **commands.files()}.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the tables of metrics and of protocols where a page asks for them."""
    return markdown.replace(protocols.PLACE, protocols.table()).replace(catalogue.PLACE, catalogue.table())
