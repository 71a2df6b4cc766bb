"""The page: one HTML file that needs no network, made of sections.

A section is a title and a function that renders it; `growthring report` and `growthring compare` differ in their
lists of sections only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from growthring.report.markup import tag, text
from growthring.report.style import SCRIPT, stylesheet

# The page asks nobody for anything: the browser is told to hold it to that.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: its heading.
        key: its class and anchor.
        render: returns its markup.
    """

    title: str
    key: str
    render: Callable[[], str]


def page(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """A whole page.

    >>> shown = page("Mine", "2 runs", [Section("Result", "result", lambda: "<p>fine</p>")])
    >>> shown.count("<section"), "http" in shown.replace("http-equiv", "")
    (1, False)
    """
    parts = [tag("header", tag("h1", text(title)), tag("p", text(f"growthring · {subtitle}")))]
    parts += [
        tag(
            "section",
            tag("h2", text(section.title), id=f"{section.key}-title"),
            section.render(),
            class_=section.key,
            aria_labelledby=f"{section.key}-title",
        )
        for section in sections
    ]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", text(title)),
        f"<style>{stylesheet()}</style>",
    ]
    tip = tag("div", id="tip", role="status", hidden="hidden")
    body = tag("body", tag("main", *parts), tip, f"<script>{SCRIPT}</script>")
    return f'<!DOCTYPE html>\n<html lang="en">\n{tag("head", *head)}\n{body}\n</html>\n'
