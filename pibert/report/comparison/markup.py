"""Tables as plain data, and their three looks: HTML, Markdown, LaTeX (booktabs).

The first table row holds names of columns; a row is a model, or the truth at the foot of a table.
Bold is the best of a column, a dagger marks what is level with the best model: the 95 % interval of
their difference holds zero.
"""

import re
from dataclasses import dataclass
from html import escape

DAGGER = "†"
_POWER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e(-?\d+)(?!\w)")
_MINUS = re.compile(r"(?<![\w-])-(?=\d)")
_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "²": r"\textsuperscript{2}",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "∞": r"$\infty$",
    "−": "$-$",
    "–": "--",
    DAGGER: r"\textsuperscript{\textdagger}",
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number, or a name."""

    text: str
    number: int | float | None = None
    """What to sort by; None for names and where nothing was measured."""
    best: bool = False
    """The best of its column."""
    level: bool = False
    """No significant difference to the best model."""
    note: str = ""
    """An interval or a spread, in smaller type."""

    @property
    def marked(self) -> str:
        return self.text + (DAGGER if self.level else "")


@dataclass(frozen=True, kw_only=True)
class Table:
    """What a table says, however it looks."""

    name: str
    """In links and labels: lower case with hyphens."""
    title: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    foot: tuple[tuple[Cell, ...], ...] = ()
    """Not ranked: what the data themselves have."""
    header: int = 0
    """The column that names the rows."""

    def __post_init__(self) -> None:
        for row in (*self.rows, *self.foot):
            if len(row) != len(self.head):
                raise ValueError(
                    f"expected {len(self.head)} cells in every row of {self.name!r}, found "
                    f"{len(row)}"
                )


def slug(text: str) -> str:
    """A text as it can stand in links and labels."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def as_html(table: Table) -> str:
    """A figure that scrolls in its own box."""
    name = escape(table.name, quote=True)
    head = "".join(_html_head(label, n == table.header) for n, label in enumerate(table.head))
    body = "".join(_html_row(row, table.header) for row in table.rows)
    foot = "".join(_html_row(row, table.header) for row in table.foot)
    foot = f"<tfoot>{foot}</tfoot>" if foot else ""
    caption = f"<strong>{escape(table.title)}.</strong> {html_text(table.caption)}"
    return (
        f'<figure class="table" id="{name}"><figcaption id="{name}-caption">{caption}</figcaption>'
        f'<div class="scroll" role="region" aria-labelledby="{name}-caption" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>{foot}</table></div></figure>\n"
    )


def _html_head(label: str, is_header: bool) -> str:
    # An arrow does not stand alone on a line.
    text = escape(label).replace(" ↓", "&nbsp;↓").replace(" ↑", "&nbsp;↑")
    kind = ' class="name"' if is_header else ""
    return f'<th scope="col"{kind}>{text}</th>'


def _html_row(row: tuple[Cell, ...], header: int) -> str:
    return f"<tr>{''.join(_html_cell(c, n == header) for n, c in enumerate(row))}</tr>"


def _html_cell(cell: Cell, is_header: bool) -> str:
    text = escape(cell.text)
    if is_header:
        return f'<th scope="row">{text}</th>'
    if cell.number is not None:
        text = _html_number(text)
    elif not cell.best and len(text) > 1:
        return f'<td class="words">{text}</td>'
    text = f"<b>{text}</b>" if cell.best else text
    text += f"<sup>{DAGGER}</sup>" if cell.level else ""
    text += f" <small>{_html_number(escape(cell.note))}</small>" if cell.note else ""
    value = "" if cell.number is None else f' data-value="{float(cell.number)!r}"'
    return f"<td{value}>{text}</td>"


def _html_number(text: str) -> str:
    text = _POWER.sub(lambda m: f"{m[1]}×10<sup>{m[2].replace('-', '−')}</sup>", text)
    return _MINUS.sub("−", text)


def html_text(text: str) -> str:
    """Any text, with its powers of ten set as such; a number stays with its per cent."""
    return _html_number(escape(text)).replace(" %", "&nbsp;%")


def as_markdown(table: Table) -> str:
    """A heading, the table, its caption."""
    rows = [[_markdown_cell(cell) for cell in row] for row in (*table.rows, *table.foot)]
    sides = [":--" if n == table.header else "--:" for n in range(len(table.head))]
    lines = [[_markdown(label) for label in table.head], sides, *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"### {_markdown(table.title)}\n\n{text}\n\n{_markdown(table.caption)}\n"


def _markdown_cell(cell: Cell) -> str:
    text = _markdown(cell.text)
    text = f"**{text}**" if cell.best else text
    return text + (DAGGER if cell.level else "") + (f" {_markdown(cell.note)}" if cell.note else "")


def _markdown(text: str) -> str:
    """Without meaning of its own."""
    return re.sub(r"([\\|*_`<>])", r"\\\1", text)


def as_latex(table: Table) -> str:
    """A float for the package booktabs."""
    columns = "".join("l" if n == table.header else "r" for n in range(len(table.head)))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex(f'{table.title}. {table.caption}')}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(_latex(label) for label in table.head) + r" \\",
        r"\midrule",
        *(_latex_row(row) for row in table.rows),
        *([r"\midrule"] if table.foot else []),
        *(_latex_row(row) for row in table.foot),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_row(row: tuple[Cell, ...]) -> str:
    # A bracket at the start of a line would be an option of the \\ before it.
    text = " & ".join(_latex_cell(cell) for cell in row)
    return ("{}" if text.startswith("[") else "") + text + r" \\"


def _latex_cell(cell: Cell) -> str:
    def number(text: str) -> str:
        if cell.number is None:
            return _latex(text)
        parts = _POWER.split(_MINUS.sub("−", text))
        plain = [_latex(part) for part in parts[::3]]
        powers = zip(parts[1::3], parts[2::3], strict=True)
        set_powers = [rf"${base}\times10^{{{power}}}$" for base, power in powers]
        return "".join(a + b for a, b in zip(plain, [*set_powers, ""], strict=True))

    text = number(cell.text)
    text = rf"\textbf{{\boldmath {text}}}" if cell.best else text
    text += _LATEX[DAGGER] if cell.level else ""
    return text + (rf" {{\scriptsize {number(cell.note)}}}" if cell.note else "")


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
