"""HTML and SVG out of texts that may hold any character."""

from __future__ import annotations

import html


def text(value: object) -> str:
    r"""A text as markup: escaped, without characters that HTML cannot hold.

    >>> text('<b> & "c"'), text("a\x00b"), text("\ud800")
    ('&lt;b&gt; &amp; &quot;c&quot;', 'a\ufffdb', '\ufffd')
    """
    shown = "".join(c if _allowed(c) else "\ufffd" for c in str(value))
    return html.escape(shown, quote=True)


def tag(name: str, /, *children: str, **attributes: object) -> str:
    """An element: children are markup, attribute values are texts.

    An attribute that is None is left out, and an underscore in its name becomes a hyphen, except that
    one at the end is dropped (`class_`).

    >>> tag("p", text("1 < 2"), class_="note", title=None)
    '<p class="note">1 &lt; 2</p>'
    >>> tag("path", d="M0,0")
    '<path d="M0,0"/>'
    """
    shown = "".join(
        f' {key.removesuffix("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not children and name in _EMPTY:
        return f"<{name}{shown}/>"
    return f"<{name}{shown}>{''.join(children)}</{name}>"


def table(caption: str, head: list[str], rows: list[list[str]], numeric: bool = True) -> str:
    """A table of markup cells; the first cell of each row is its heading.

    Args:
        numeric: whether the other cells hold numbers, which are aligned to the right.
    """
    columns = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]))
        for row in rows
    ]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", text(caption)),
            tag("thead", columns),
            tag("tbody", *body),
            class_="numbers" if numeric else "texts",
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def chart_box(svg: str, size: str) -> str:
    """A chart in a box as wide as the page has room for.

    Args:
        svg: the chart.
        size: "plain": it is scaled to the box; "wide": it keeps a size at which it can be read, and scrolls.
    """
    return tag("div", svg, class_=f"scroll {size}")


def details(summary: str, *children: str, opened: bool = False) -> str:
    """A part that can be folded; the summary is a text."""
    return tag("details", tag("summary", text(summary)), *children, open="open" if opened else None)


def sentence(words: str) -> str:
    """What is said in place of something missing."""
    return tag("p", text(words), class_="missing")


_EMPTY = {"path", "rect", "line", "circle", "meta", "br"}


def _allowed(character: str) -> bool:
    code = ord(character)
    if code < 0x20:
        return character in "\t\n"
    return not (0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000 or code & 0xFFFE == 0xFFFE)
