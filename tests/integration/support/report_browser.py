"""Pages of `lockstep report` in Debian's headless Chromium. Every console message of an error, exception or request is
kept in `faults`: the `page_of` fixture asserts that there are none.
"""

import html
import json
import re
import shutil

import pytest

CHROMIUM = shutil.which("chromium")
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def chromium():
    if CHROMIUM is None:
        pytest.skip("no chromium: HTML reports were not opened in a browser (./dev test installs it)")
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright (tests/requirements.txt)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page_of(chromium):
    """Opens a file, as page_of(path, hash="#loss", size=WIDE, color_scheme="light")."""
    faults, contexts = [], []

    def opened(path, hash="", size=WIDE, color_scheme="light"):
        context = chromium.new_context(viewport=size, color_scheme=color_scheme, reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)  # ms: a loaded machine is slow
        page.on(
            "console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: (faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "request",
            lambda request: (
                None if request.url.split("#")[0] == f"file://{path}" else faults.append(f"request: {request.url}")
            ),
        )
        page.goto(f"file://{path}{hash}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert faults == []


def has_charts(text):
    return "reports draw no charts" not in text and text.count("<script>") == 2


def with_charts(text, charts):
    """The page with these charts in place of its sections: {title: data as chart_json.cc writes it}."""
    figures = "".join(
        f'<figure class="chart" id="test-chart-{i}"><figcaption>{html.escape(title)}</figcaption>'
        f'<script type="application/json">{json.dumps(data).replace("<", chr(92) + "u003c")}</script>'
        f"<details><summary>Table</summary></details></figure>"
        for i, (title, data) in enumerate(charts.items(), 1)
    )
    found = re.search("<main>.*</main>", text, re.DOTALL)
    return text[: found.start()] + f'<main><section id="test">{figures}</section></main>' + text[found.end() :]


def tip_of(figure):
    """The tooltip that is shown: its title and {name: value}."""
    tip = figure.locator(".tip").last
    figure.page.wait_for_timeout(300)  # ms: a tip that ECharts hides again goes after 100
    tip.wait_for(state="visible")
    names, values = tip.locator("dt").all_inner_texts(), tip.locator("dd").all_inner_texts()
    return tip.locator("b").inner_text(), dict(zip(names, values)), tip.locator("p").all_inner_texts()


def hover(figure, across, down):
    """Moves the pointer to a part of the chart's area: 0..1 from its left and top edges."""
    plot = figure.locator(".plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    plot.page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])


def overflow_of(page):
    """By how many CSS pixels the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")
