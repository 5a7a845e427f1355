"""Does the first screen answer what people asked in issue threads (threads.py)?

The table of docs/phenomena.md quotes the first screens; the quotes must be what the program prints
(LOCKSTEP_REWRITE_GOLDEN=1 rewrites the table).
"""

import os
import re
import shutil
import textwrap

import pytest
import threads
from conftest import SOURCE

LINES_PER_LANE, COLUMNS, LONGEST_QUOTE = 3, 100, 300
PAGE, BEGIN, END = SOURCE / "docs" / "phenomena.md", "<!-- threads -->\n", "<!-- end of threads -->\n"
HEADER = """| thread | asked | model or command | the first screen | answered |
|---|---|---|---|---|
"""


def name_of(case):
    return f"{case.row} {case.threads}: {case.shown}"


def first_screen(text):
    """lane -> its lines in the section Verdict."""
    section = re.split(r"\n\n.*\n=+\n", text.split("Verdict\n=======\n")[1])[0]
    blocks = [block.splitlines() for block in section.strip().split("\n\n")]
    return {re.split(r"[ ,]", block[0])[0]: block for block in blocks}


def screen_of(lockstep, case, folder):
    """lane -> its lines; of a command, "" -> its lines."""
    files = {"RUN": "run.h5", "AGAIN": "again.h5", "CAPTURE": "net.h5"}
    arguments = case.built_in or [case.network.capture(folder / "net.h5").name]
    for name, text in case.policies.items():
        (folder / name).write_text(text)
    if case.example:
        shutil.copy(SOURCE / "examples" / "policies" / case.example, folder)
    lanes = ",".join(["fp32", *filter(None, case.says)])
    for threads_used, run in enumerate([files[c] for c in ("RUN", "AGAIN") if c in case.command] or ["run.h5"], 1):
        lockstep(
            "replay",
            *arguments,
            *case.options,
            "--lanes",
            lanes,
            "--threads",
            threads_used,
            "-o",
            run,
            "--quiet",
            cwd=folder,
        )
    if not case.command:
        return first_screen(lockstep("report", "run.h5", cwd=folder).stdout)
    return {"": lockstep(*(files.get(c, c) for c in case.command), cwd=folder).stdout.splitlines()}


def joined(lines):
    return " ".join(" ".join(lines).split())


def wrong(case, screen):
    """What the lanes should say and do not, or say and should not."""
    found = []
    for lane, words in case.says.items():
        text = joined(screen[lane])
        found += [f"{lane}: '{word}' in '{text}'" for word in case.silent if word in text]
        if not case.command and (len(screen[lane]) > LINES_PER_LANE or max(map(len, screen[lane])) > COLUMNS):
            found.append(f"{lane}: more than {LINES_PER_LANE} lines of {COLUMNS} columns: {screen[lane]}")
        for word in words:
            before, word_found, text = text.partition(word)
            if not word_found:
                found.append(f"{lane}: no '{word}' in '{joined(screen[lane])}'")
                break
    return found


def quote(case, screen):
    """The sentences of the first screen, without remedies and line numbers."""
    if case.command:
        first = case.says[""][0]
        line = next(i for i, text in enumerate(screen[""]) if first in text)
        text = joined(screen[""][line : line + case.quoted_lines])
        return text[text.index(first.strip()) :]
    said = [joined(screen[lane]).split(" Try (untested)")[0] for lane in case.says]
    said = [re.sub(r" \(threads\.py:\d+\)", "", text) for text in said]
    return "<br>".join(textwrap.shorten(text, LONGEST_QUOTE, placeholder=" …") for text in said)


def row_of(case, said):
    return f"| {case.row}: {case.threads} | {case.question} | {case.shown} | {said} | {case.answered} |"


def rows_of_page():
    return PAGE.read_text().split(BEGIN)[1].split(END)[0].removeprefix(HEADER).splitlines()


def write_row(case, row):
    """Rows keep the order of CASES; a row whose case is gone is removed."""
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    rows = [
        row
        if other is case
        else next((old for old in rows_of_page() if old.startswith(row_of(other, "").split(" |  |")[0])), None)
        for other in threads.CASES
    ]
    PAGE.write_text(before + BEGIN + HEADER + "".join(f"{row}\n" for row in rows if row) + END + after)


def compare_with_page(case, row):
    if os.environ.get("LOCKSTEP_REWRITE_GOLDEN"):
        write_row(case, row)
    assert row in rows_of_page(), f"docs/phenomena.md differs (LOCKSTEP_REWRITE_GOLDEN=1 rewrites it):\n{row}"


@pytest.mark.parametrize("case", threads.CASES, ids=name_of)
def test_thread(lockstep, tmp_path, case):
    if not case.says:
        return compare_with_page(case, row_of(case, "-"))
    screen = screen_of(lockstep, case, tmp_path)
    faults = wrong(case, screen)
    if case.answered == "no":
        assert faults, f"the first screen answers this now: set `answered` in threads.py: {screen}"
    else:
        assert not faults, faults
    compare_with_page(case, row_of(case, quote(case, screen)))


def test_the_page_has_no_other_rows():
    assert len(rows_of_page()) == len(threads.CASES)
    assert {case.row for case in threads.CASES} == set(range(1, 18))
