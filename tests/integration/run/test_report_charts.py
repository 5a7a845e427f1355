"""Every kind of chart with data written by hand, in a browser: extremes, large ones, names that try to be markup."""

import time

import pytest
from report_browser import NARROW, chromium, overflow_of, page_of, tip_of, with_charts  # noqa: F401  (fixtures)

HOSTILE = "</script><img src=x onerror=\"alert('1')\">&amp;"


@pytest.fixture(scope="module")
def empty_page(lockstep, tmp_path_factory):
    run = tmp_path_factory.mktemp("report_charts") / "run.h5"
    lockstep("replay", "mlp", "--data", "synthetic:50", "--steps", 2, "--batch", 8, "--lanes", "fp32", "-o", run)
    text = lockstep("report", run, "--format", "html").stdout
    if text.count("<script>") < 2:
        pytest.skip("this build draws no charts: LOCKSTEP_CHARTS, or no npm")
    return text


@pytest.fixture
def figures_of(page_of, empty_page, tmp_path):
    """Opens a page with these charts; gives the page and a figure per chart."""

    def opened(*charts, **options):
        path = tmp_path / "page.html"
        path.write_text(with_charts(empty_page, {f"chart {i}": chart for i, chart in enumerate(charts)}))
        page = page_of(path, **options)
        return page, [page.locator(f"#test-chart-{i}") for i in range(1, 1 + len(charts))]

    return opened


def curves(name="a", x=("0", "1", "2"), values=(3, 1, 2), scale="linear", marks=()):
    series = {"name": name, "values": list(values), "marks": list(marks)}
    band = {"name": f"{name} noise", "low": list(values), "high": list(values)}
    panel = {"title": name, "scale": scale, "series": [series], "bands": [band], "markName": name}
    return {"kind": "curves", "xTitle": "step", "x": list(x), "panels": [panel]}


def heat_map(rows, columns, cells, name="share of a", site=-1):
    view = {"choice": [name], "unit": name, "lane": name, "cells": [[r, c, v, site, m] for r, c, v, m in cells]}
    return {
        "kind": "heat map",
        "xTitle": "step",
        "yTitle": "layer",
        "rows": rows,
        "columns": columns,
        "selectors": ["measure"],
        "logarithmic": True,
        "floor": 0,
        "views": [view],
        "otherOrder": [],
        "orderNames": [],
    }


def histograms(name="a"):
    view = {
        "site": 7,
        "lane": name,
        "layer": name,
        "role": name,
        "label": name,
        "source": name,
        "format": "fp16",
        "seen": {"first": -30, "counts": [1, 0, 5, 9]},
        "zeros": 3,
        "nonfinite": 0,
        "scale": "",
    }
    window = {"name": "fp16", "minSubnormal": -24, "minNormal": -14, "max": 15}
    return {"kind": "histograms", "windows": [window], "firstScale": 0, "views": [view], "gradients": []}


def intervals(name="a", low=2, high=5):
    rows = [
        {"name": name, "low": low, "high": high, "lowText": f"{name} low", "highText": f"{name} high"},
        {"name": "b", "low": 9, "high": 4, "lowText": "", "highText": ""},
    ]
    return {
        "kind": "intervals",
        "xTitle": "loss scale",
        "rows": rows,
        "low": 9,
        "high": 4,
        "marks": [{"name": name, "value": 16}],
    }


def scatter(name="a"):
    points = [
        {"name": name, "group": name, "x": 1, "y": 0.5, "yHigh": 0.9, "chosen": False},
        {"name": f"{name} 2", "group": "other", "x": 10, "y": 0.1, "chosen": True},
        {"name": "cannot be drawn", "group": "other", "x": 0, "y": 0.1, "chosen": False},
    ]
    return {
        "kind": "scatter",
        "xTitle": name,
        "yTitle": name,
        "xLogarithmic": True,
        "yLogarithmic": False,
        "points": points,
    }


KEYS = ["ArrowRight", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp"]


def test_a_name_that_tries_to_be_markup_stays_text_in_every_chart(figures_of):
    name = HOSTILE
    marks = [[1, 1, name]]
    page, figures = figures_of(
        curves(name, (name, name, name), marks=marks),
        heat_map([name, name], [name], [(0, 0, 0.5, 1), (1, 0, 0.1, 0)], name),
        histograms(name),
        intervals(name),
        scatter(name),
    )
    for figure in figures:
        figure.locator(".plot").focus()
        said, tips = set(), set()
        for key in KEYS:
            page.keyboard.press(key)
            said.add(figure.locator("[aria-live]").last.inner_text())
            tips |= set(figure.locator(".tip").all_inner_texts())
        assert any(name in text for text in said), said
        assert any(name in text for text in tips), tips
        figure.locator(".plot").hover()
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 7  # five with data, two that run
    assert figures[1].get_by_label("measure").input_value() == name
    assert figures[2].locator(".facts b").inner_text() == name


def test_a_large_heat_map_shows_its_first_rows_and_scrolls(figures_of):
    rows, columns = [f"layer{i}.conv" for i in range(1200)], [str(i) for i in range(100)]
    cells = [(r, c, 10.0 ** -((r + c) % 5), 0) for r in range(1200) for c in range(100)]
    begin = time.monotonic()
    page, [figure] = figures_of(heat_map(rows, columns, cells))
    drawn = figure.locator("svg path[fill^='var(--heat-']")
    assert drawn.count() == 40 * 100
    assert time.monotonic() - begin < 15, "seconds, on a loaded machine"
    figure.locator(".plot").focus()
    for key, row in (("ArrowDown", 0), ("PageDown", 40), ("ArrowDown", 41), ("PageUp", 1)):
        page.keyboard.press(key)
        said = figure.locator("[aria-live]").inner_text()
        assert said.startswith(f"layer{row}.conv: step 0; share of a "), said
        assert figure.locator("svg text", has_text=f"layer{row}.conv").first.is_visible()
        assert drawn.count() == 40 * 100
    assert tip_of(figure)[0] == "layer1.conv"


def test_colours_of_a_heat_map_follow_the_values(figures_of):
    values = [0.5, 0.02, 0.0004, 0]
    cells = [(i, 0, value, int(i == 1)) for i, value in enumerate(values)]
    page, [figure] = figures_of(heat_map(["a", "b", "c", "d"], ["0"], cells))
    drawn = figure.locator("svg path[fill^='var(--heat-']")
    classes = [
        int(drawn.nth(i).get_attribute("fill").removeprefix("var(--heat-").rstrip(")")) for i in range(drawn.count())
    ]
    assert len(classes) == 3 and classes == sorted(classes, reverse=True) and len(set(classes)) == 3
    assert drawn.nth(1).get_attribute("stroke") == "var(--ink)", "measured cells have an outline"
    assert drawn.nth(0).get_attribute("stroke") in (None, "none")
    legend = figure.locator(".legend li").all_inner_texts()
    assert legend[-1] == "measured" and legend[-2].startswith("from 10%"), legend


def test_empty_intervals_are_conflicts(figures_of):
    page, [figure] = figures_of(intervals())
    assert figure.locator("svg path[stroke='var(--bad)']").count() == 1
    assert figure.get_by_text("No value is common to all rows.").is_visible()
    assert figure.locator("svg text", has_text="2^16 a").count() == 1
    figure.locator(".plot").focus()
    page.keyboard.press("ArrowDown")
    assert tip_of(figure) == ("a", {"from 2^2": "a low", "to 2^5": "a high"}, [])
    page.keyboard.press("ArrowDown")
    assert tip_of(figure)[2] == ["No value satisfies both ends."]


def test_what_is_common_to_all_has_the_name_that_the_chart_gives(figures_of):
    page, figures = figures_of(
        {**intervals(), "low": 3, "high": 5},
        {**intervals(), "low": 3, "high": 5, "commonName": "advised"},
        {**intervals(), "low": None, "high": 5},
    )
    assert figures[0].locator(".legend li", has_text="common to all: 2^3 to 2^5").count() == 1
    assert figures[1].locator(".legend li", has_text="advised: 2^3 to 2^5").count() == 1
    assert figures[2].locator(".legend li", has_text="common to all").count() == 0


def test_the_chosen_point_stands_out_and_groups_can_be_hidden(figures_of):
    page, [figure] = figures_of(scatter())
    assert figure.locator("svg text", has_text="a 2").count() == 1
    chosen = figure.locator("svg path[stroke='var(--ink)']")
    assert chosen.count() == 1
    figure.locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    assert tip_of(figure) == ("a", {"a": "0.5, up to 0.9"}, ["a"])
    page.keyboard.press("ArrowRight")
    assert tip_of(figure)[2] == ["other", "the chosen one"]
    figure.get_by_role("button", name="other").click()
    assert chosen.count() == 0


def test_curves_with_gaps_without_values_and_of_one_step(figures_of):
    page, figures = figures_of(
        curves(values=(1, None, 2)),
        curves(values=(None, None, None)),
        curves(x=("0",), values=(4,)),
        curves(values=(65536, 32768), scale="powers of two"),
        curves(values=(1e-5, 0, 1e5), scale="logarithmic"),
    )
    points = [figure.locator("svg path[fill='var(--line-1)']").count() for figure in figures]
    assert points == [2, 0, 1, 0, 2], "values between gaps are points"
    assert figures[1].locator(".note").inner_text() == "No finite values."
    assert figures[1].locator(".plot").count() == 0
    said = []
    for figure in figures[:1] + figures[2:]:
        figure.locator(".plot").focus()
        page.keyboard.press("End")
        said.append(figure.locator("[aria-live]").inner_text().removesuffix(": a 2 … 2").split(";")[0])
    assert said == ["step 2: a 2", "step 0: a 4", "step 2: a stopped", "step 2: a 100000"]


def test_labels_of_close_values_differ(figures_of):
    page, figures = figures_of(curves(values=(2.3208, 2.3211, 2.3214)), curves(values=(2.3, 2.5, 2.7)))
    for figure in figures:
        labels = [text for text in figure.locator("svg text").all_text_contents() if text.startswith("2.")]
        assert len(labels) >= 3 and len(set(labels)) == len(labels), labels


def test_no_slider_without_a_gradient(figures_of):
    page, [figure] = figures_of(histograms(), size=NARROW)
    assert not figure.get_by_label("loss scale").is_visible()
    # 2^-30 and 2^-28 become zero in FP16
    assert figure.locator("svg path[fill='var(--fate-zero)']").count() >= 3
    assert figure.locator(".facts").inner_text().split("\n") == [
        "a",
        "a",
        "rounded to fp16",
        "zeros: 3",
        "not finite: 0",
    ]
    assert overflow_of(page) == 0


def test_an_unknown_or_broken_link_is_ignored(page_of, empty_page, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(with_charts(empty_page, {"a": histograms(), "b": heat_map(["a"], ["0"], [(0, 0, 1, 0)])}))
    page = page_of(path, "#histogram=nobody/1")
    for hash in ("#histogram=%E0%A4%A", "#test-chart-2=x/y/z", "#nothing", "#=", "#histogram=a/7"):
        page.evaluate("(hash) => { location.hash = hash }", hash)
        assert page.locator("#test-chart-1 .facts b").inner_text() == "a"
