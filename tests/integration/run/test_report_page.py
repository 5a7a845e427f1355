"""`report --format html`, read as a browser would: what it says, what it loads, what a hostile name can do."""

import html.parser
import json
import re
import shutil

import h5py
import pytest
from unsealed import unseal

HOSTILE = "</script><img src=x onerror=\"alert('1')\">&amp;|`http:`"
VOID = {"meta", "img", "link", "input", "br", "hr"}


class Page(html.parser.HTMLParser):
    """Tags with their attributes, ids, tables as lists of rows of cells."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.tables, self.open, self.texts = [], [], [], []
        self.sections = []  # of each table, its section's id
        self.cell = None
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
            self.sections.append(self.named("section")[-1]["id"])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.cell = ""

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> inside {self.open}"
        self.open.pop()
        if tag in ("th", "td"):
            self.tables[-1][-1].append(self.cell)
            self.cell = None

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)
        if self.cell is not None:
            self.cell += data

    def named(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def run_path(lockstep, tmp_path_factory):
    path = tmp_path_factory.mktemp("report_page") / "run.h5"
    lockstep(
        "replay",
        "lenet",
        "--data",
        "synthetic:200",
        "--steps",
        30,
        "--batch",
        16,
        "--lr",
        0.3,
        "--lanes",
        "fp32,torch-autocast-fp16,pure-fp16",
        "-o",
        path,
    )
    return path


@pytest.fixture(scope="module")
def reports(lockstep, run_path):
    """The HTML and the text report, both written to files."""
    for ending in ("html", "txt"):
        lockstep("report", run_path, "-o", run_path.with_suffix("." + ending))
    return run_path.with_suffix(".html").read_text(), run_path.with_suffix(".txt").read_text()


@pytest.fixture(scope="module")
def hostile(lockstep, run_path):
    """The report of the same run with a layer of another name."""
    path = run_path.with_name("hostile.h5")
    shutil.copy(run_path, path)
    with h5py.File(path, "r+") as file:
        layers = [HOSTILE if name == b"conv1" else name.decode() for name in file["sites/layer"]]
        del file["sites/layer"]
        unseal(file)
        file["sites"].create_dataset("layer", data=[name.encode() for name in layers], dtype=f"S{len(HOSTILE)}")
    return lockstep("report", path, "--format", "html").stdout


@pytest.mark.parametrize(
    "ending, start",
    [("md", "## Lockstep: lenet"), ("json", "{"), ("htm", "<!DOCTYPE html>"), ("txt", "Verdict"), ("log", "Verdict")],
)
def test_the_ending_of_the_name_decides_the_format(lockstep, run_path, ending, start):
    out = run_path.with_name("by_ending." + ending)
    lockstep("report", run_path, "-o", out)
    assert out.read_text().startswith(start)


def words(row):
    return " ".join(" ".join(cell for cell in row if cell).split())


def is_shown(row, lines):
    """Is it a line of the text report, which may have shortened a name?"""
    text = words(row)
    return text in lines or any(
        text.startswith(start) and text.endswith(end)
        for start, cut, end in (line.partition("…") for line in lines)
        if cut
    )


def test_tables_say_what_the_text_report_says(reports):
    page, text = Page(reports[0]), reports[1]
    rows = text.splitlines()
    lines = {" ".join(row.split()) for row in rows}
    # sections that are pictures have no text
    titles = dict(re.findall(r'<section id="([^"]+)">\n<h2>(.*?) <a', reports[0]))
    tables = [table for table, section in zip(page.tables, page.sections) if titles[section] in rows]
    assert len(page.tables) > len(tables) >= 5
    for table in tables:
        for row in table:
            assert is_shown(row, lines), row
    # and no table is missing: under every heading's rule of dashes stands a first row
    rules = [at for at, row in enumerate(rows) if re.fullmatch(r"  -[- ]*", row)]
    assert len(rules) == len(tables)
    for at, table in zip(rules, tables):
        assert words(table[0]) == words([rows[at - 1]])
        assert is_shown(table[1], {words([rows[at + 1]])}), rows[at + 1]


def test_verdict_comes_first_with_a_sign_and_a_word(reports):
    page = Page(reports[0])
    sections = [attrs["id"] for attrs in page.named("section")]
    assert sections[0] == "verdict" and sections[-1] == "provenance"
    verdicts = [attrs for attrs in page.named("p") if "verdict" in attrs.get("class", "")]
    # The lanes, the worst first; then the layers to keep in FP32 and the loss scale to set.
    assert [attrs["class"] for attrs in verdicts] == ["verdict bad", "verdict good", "verdict plain", "verdict plain"]
    shown = " ".join(page.texts)
    assert "under autocast, by their range" in shown and "Set a static loss scale of 2^" in shown
    start = "".join(page.texts).split("Verdict", 2)[2].lstrip(" #\n")
    assert start.startswith("✕pure-fp16 is stalled: "), start[:80]


def test_links_lead_to_ids_that_are_unique(reports):
    page = Page(reports[0])
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids)) > 10
    links = [attrs["href"] for attrs in page.named("a")]
    assert links and all(link.startswith("#") and link[1:] in ids for link in links)


def charts(text):
    """The data of the page's charts, {kind: [data, ...]}."""
    found = {}
    for data in re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL):
        found.setdefault(json.loads(data)["kind"], []).append(json.loads(data))
    return found


def test_curves_have_every_step_of_every_lane(reports, run_path):
    drawn = {series["name"]: series["values"] for series in charts(reports[0])["curves"][0]["panels"][0]["series"]}
    with h5py.File(run_path) as file:
        for lane in ("fp32", "torch-autocast-fp16", "pure-fp16"):
            losses = file[f"lanes/{lane}/loss"][:]
            assert len(drawn[lane]) == len(losses) == 30
            for shown, loss in zip(drawn[lane], losses):
                assert shown == (float(f"{loss:.5g}") if abs(loss) < float("inf") else None)


@pytest.mark.parametrize("which", ["reports", "hostile"])
def test_nothing_is_loaded_and_no_name_is_markup(which, request):
    text = request.getfixturevalue(which)
    page = Page(text if isinstance(text, str) else text[0])
    names = {name for name, _ in page.tags}
    assert names <= {
        "abbr",
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "header",
        "p",
        "h1",
        "div",
        "nav",
        "ul",
        "li",
        "a",
        "main",
        "section",
        "h2",
        "span",
        "strong",
        "code",
        "pre",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "figure",
        "figcaption",
        "svg",
        "rect",
        "details",
        "summary",
        "b",
        "footer",
        "script",
        "ol",
    }
    data = [attrs for attrs in page.named("script") if attrs == {"type": "application/json"}]
    run = [attrs for attrs in page.named("script") if attrs == {}]
    assert len(data) == len(page.named("figure")) > 0
    assert len(run) in (1, 2) and len(run) + len(data) == len(page.named("script"))
    for tag, attrs in page.tags:
        assert not [name for name in attrs if name.startswith("on") or name in ("src", "srcset", "action")], (
            tag,
            attrs,
        )
        for name, value in attrs.items():
            if name != "content" and HOSTILE not in (value or ""):
                assert "http" not in (value or "") and "//" not in (value or ""), (tag, name, value)
    policy = [attrs["content"] for attrs in page.named("meta") if "http-equiv" in attrs]
    assert len(policy) == 1 and policy[0].startswith("default-src 'none'; ")
    assert policy[0].count("'sha256-") == len(run)
    style = re.search("<style>(.*?)</style>", text if isinstance(text, str) else text[0], re.DOTALL)[1]
    assert "url(" not in style and "@import" not in style


def test_the_hostile_name_is_shown_as_it_is(hostile):
    page = Page(hostile)
    assert any(row and row[0] == HOSTILE for table in page.tables for row in table)
