"""Reports of built-in networks and of captured ones with different findings, opened in a browser."""

import hand_planted as planted
import pytest
from lockstep_capture import read_run
from report_browser import NARROW, chromium, overflow_of, page_of  # noqa: F401  (fixtures)

FAULTS = ["activation beyond 65504", "log of a number that vanishes", "a large offset"]


def check(page_of, lockstep, run):
    """The page says who is worst, draws every chart, fits a phone; returns it."""
    path = run.with_suffix(".html")
    lockstep("report", run, "-o", path)
    if path.read_text().count("<script>") < 2:
        pytest.skip("this build draws no charts: LOCKSTEP_CHARTS, or no npm")
    narrow = page_of(path, size=NARROW)
    assert overflow_of(narrow) == 0
    page = page_of(path)
    assert page.locator(".verdict strong").first.bounding_box()["y"] < page.viewport_size["height"] / 2
    figures = page.locator("figure.chart")
    assert figures.count() >= 3
    for figure in figures.all():
        assert figure.locator(".plot svg path").count() > 1, figure.get_attribute("id")
    return page


def check_losses(page, run):
    """The last step's loss of every lane, by the keyboard."""
    figure = page.locator("figure#loss-chart-1")
    figure.locator(".plot").focus()
    page.keyboard.press("End")
    said = figure.locator("[aria-live]").inner_text()
    data = read_run(run)
    step = data.steps_complete - 1
    for lane in data.lanes.index:
        if lane != "twin" and step in data.steps.loss[lane].index:
            loss = data.steps.loss[lane, step]
            shown = next(part for part in said.split(": ", 1)[1].split("; ") if part.startswith(f"{lane}"))
            assert float(shown.split()[-1]) == pytest.approx(loss, rel=1e-3) or loss != loss, shown


def test_lenet_on_mnist(page_of, lockstep, mnist, tmp_path):
    run = tmp_path / "run.h5"
    lockstep(
        "replay",
        "lenet",
        "--data",
        f"mnist:{mnist}",
        "--steps",
        200,
        "--batch",
        32,
        "--lanes",
        "fp32,twin,torch-autocast-fp16,torch-autocast-bf16,pure-fp16",
        "-o",
        run,
    )
    check_losses(check(page_of, lockstep, run), run)


def test_gpt_on_text(page_of, lockstep, corpus, tmp_path):
    run = tmp_path / "run.h5"
    lockstep(
        "replay",
        "gpt",
        "--size",
        "layers=2,width=64,context=32",
        "--data",
        f"text:{corpus}",
        "--steps",
        60,
        "--batch",
        8,
        "--optimizer",
        "adamw",
        "--lr",
        "1e-3",
        "--lanes",
        "fp32,twin,torch-autocast-fp16,pure-bf16",
        "-o",
        run,
    )
    check_losses(check(page_of, lockstep, run), run)


@pytest.mark.parametrize("name", FAULTS)
def test_captured_networks_with_different_findings(page_of, lockstep, tmp_path, name):
    fault = next(one for one in planted.FAULTS if one.name == name)
    capture, run = tmp_path / "capture.h5", tmp_path / "run.h5"
    planted.capture(fault, capture)
    lane, (kinds, layer) = next(iter(fault.fires.items()))
    lockstep("replay", capture, "--lanes", f"fp32,twin,{lane}", "-o", run)
    page = check(page_of, lockstep, run)
    assert "hand_planted.py:" in page.locator("main").inner_text(), "the source line"
    link = page.locator("#chains a.open-histogram").first
    link.click()
    assert page.locator("figure#histogram-chart-1 .facts b").inner_text().startswith(f"{layer}")
