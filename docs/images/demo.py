"""Draws docs/images/demo.svg, the picture in the README: the start of the report that `./dev demo` writes.

    ./dev demo && python3 docs/images/demo.py build/demo/report.txt

The picture holds the report's own lines: the verdict and the table of lanes. Nothing is rewritten; an omission shows as a line with an ellipsis.
"""

import pathlib
import re
import sys
from xml.sax.saxutils import escape

TITLE = "lockstep report build/demo/run.h5"
CHARACTER, LINE, MARGIN, BAR, FONT = 8.43, 19, 18, 34, 14   # pixels; a character is 0.602 of the font's height
BACKGROUND, FRAME, TEXT, DIM = "#1b1f27", "#2a303c", "#d7dce5", "#8b94a5"
COLOURS = {"broke": "#ff7b72", "worse": "#ff7b72", "stalled": "#ff7b72", "unclear": "#e3b341", "fine": "#7ee787"}


def sections(report):
    """{heading: lines}; a heading is underlined with = signs."""
    found, lines = {}, report.splitlines()
    starts = [i for i in range(len(lines) - 1) if lines[i] and re.fullmatch("=+", lines[i + 1])]
    for start, end in zip(starts, [*starts[1:], len(lines)]):
        found[lines[start]] = "\n".join(lines[start + 2:end]).strip("\n")
    return found


def shown_lines(report):
    parts = sections(report)
    table = parts["Lanes"].split("\n")
    rows = table[:2 + next(i for i, row in enumerate(table[2:]) if "  " not in row.strip())]
    return ["Verdict", "======="] + parts["Verdict"].split("\n") + ["", "Lanes", "=====", *rows]


def runs(line):
    """(column, text, colour) of the words of a line: columns of a table apart, verdicts apart from what surrounds them."""
    for piece in re.finditer(r"\S+(?: \S+)*", line):
        column = piece.start()
        for text in re.split(rf"\b({'|'.join(COLOURS)})\b", piece[0]):
            if text.strip():
                indent = len(text) - len(text.lstrip())
                yield column + indent, text.strip(), COLOURS.get(text, TEXT)
            column += len(text)


def picture(lines):
    width = round(2 * MARGIN + CHARACTER * max(map(len, lines)))
    height = BAR + 2 * MARGIN + LINE * (len(lines) - 1)
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
           f'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="{FONT}">')
    yield f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>'
    yield f'<path d="M0 {BAR}V8a8 8 0 0 1 8-8H{width - 8}a8 8 0 0 1 8 8V{BAR}z" fill="{FRAME}"/>'
    yield f'<text x="{MARGIN}" y="22" fill="{DIM}">$ {TITLE}</text>'
    for i, line in enumerate(lines):
        heading = line.strip("=") == "" or (i + 1 < len(lines) and lines[i + 1].startswith("==="))
        bold = ' font-weight="bold"' if heading else ""
        for column, text, colour in runs(line):
            # The length keeps columns in line where a viewer's font is wider or narrower.
            yield (f'<text x="{MARGIN + CHARACTER * column:.1f}" y="{BAR + MARGIN + 4 + LINE * i}" '
                   f'textLength="{CHARACTER * len(text):.1f}" fill="{colour}"{bold}>{escape(text)}</text>')
    yield "</svg>"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    lines = shown_lines(pathlib.Path(sys.argv[1]).read_text())
    target = pathlib.Path(__file__).with_suffix(".svg")
    target.write_text("\n".join(picture(lines)) + "\n")
    print(f"{target.name}: {len(lines)} lines")


if __name__ == "__main__":
    main()
