"""The HTML report of a real run in a browser: what it shows under the pointer and after clicks, against the run file."""

import re

import numpy as np
import pytest
from lockstep_capture import read_run
from report_browser import NARROW, chromium, hover, overflow_of, page_of, tip_of  # noqa: F401  (fixtures)

STEPS = 30
SCALED, BROKEN = "torch-autocast-fp16", "pure-fp16"


@pytest.fixture(scope="module")
def run_path(lockstep, tmp_path_factory):
    path = tmp_path_factory.mktemp("report_browser") / "run.h5"
    lockstep(
        "replay",
        "lenet",
        "--data",
        "synthetic:200",
        "--steps",
        STEPS,
        "--batch",
        16,
        "--lr",
        0.3,
        "--lanes",
        f"fp32,twin,{SCALED},{BROKEN}",
        "-o",
        path,
    )
    return path


@pytest.fixture(scope="module")
def report(lockstep, run_path):
    path = run_path.with_suffix(".html")
    lockstep("report", run_path, "-o", path)
    if path.read_text().count("<script>") < 2:
        pytest.skip("this build draws no charts: LOCKSTEP_CHARTS, or no npm")
    return path


@pytest.fixture(scope="module")
def run(run_path):
    return read_run(run_path)


def test_the_first_sentence_is_in_the_first_screen(page_of, report):
    page = page_of(report)
    sentence = page.locator(".verdict strong").first
    assert sentence.inner_text().startswith(BROKEN)
    assert sentence.bounding_box()["y"] < page.viewport_size["height"] / 2


def test_a_curve_shows_the_losses_of_the_step_under_the_pointer(page_of, report, run):
    page = page_of(report)
    figure = page.locator("figure#loss-chart-1")
    hover(figure, 0.5, 0.3)
    title, shown, _ = tip_of(figure)
    step = int(title.removeprefix("step "))
    assert 0 < step < STEPS - 1
    for lane in ("fp32", SCALED, BROKEN):
        loss = run.steps.loss[lane, step]
        assert float(shown[f"{lane}, loss"]) == pytest.approx(loss, rel=1e-3)
    twin = run.steps.loss["twin", step], run.steps.loss["fp32", step]
    assert [float(end) for end in shown["fp32 and its twin"].split(" … ")] == pytest.approx(sorted(twin), rel=1e-3)


def test_the_keyboard_goes_through_the_steps_and_names_a_skips_culprit(page_of, report, run):
    skipped = run.steps.index[run.steps.found_inf > 0]
    skipped = [step for lane, step in skipped if lane == SCALED]
    assert skipped, "the run was chosen to skip a step"
    page = page_of(report, "#loss")
    figure = page.locator("figure#loss-chart-1")
    figure.locator(".plot").focus()
    page.keyboard.press("Home")
    for _ in range(skipped[0]):
        page.keyboard.press("ArrowRight")
    title, shown, notes = tip_of(figure)
    assert title == f"step {skipped[0]}"
    assert shown[f"{SCALED}, loss scale"] == f"2^{int(np.log2(run.steps.scale[SCALED, skipped[0]]))}"
    culprit = page.locator("#loss-scale tbody tr").first.locator("td").last.inner_text()
    assert f"{SCALED}, step {skipped[0]}: skipped, first not finite: {culprit}" in notes
    assert culprit in figure.locator("[aria-live]").inner_text()


def test_the_legend_hides_a_lane(page_of, report):
    page = page_of(report)
    figure = page.locator("figure#loss-chart-1")
    button = figure.get_by_role("button", name=BROKEN)
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    hover(figure, 0.5, 0.3)
    assert f"{BROKEN}, loss" not in tip_of(figure)[1]
    assert "fp32, loss" in tip_of(figure)[1]


def test_rows_are_filtered_and_sorted(page_of, report):
    page = page_of(report)
    table = page.locator("#layers table").last
    page.get_by_label("Show table rows with").fill("fc* grad_activation")
    rows = table.locator("tbody tr:visible")
    assert rows.count() > 0
    for text in rows.all_inner_texts():
        assert re.search("fc.*grad_activation", text, re.DOTALL)
    page.get_by_label("Show table rows with").fill("")
    heads = table.locator("th")
    column = heads.all_inner_texts().index("subnormal")
    for times, sign in ((1, 1), (2, -1)):
        heads.nth(column).locator("button").click()
        cells = table.locator(f"tbody td:nth-child({column + 1})").all_inner_texts()
        shares = [float(cell.rstrip("%")) for cell in cells if cell not in (".", "-", "")]
        assert len(shares) > 3 and shares == sorted(shares, reverse=sign < 0), times


def zeroed(run, lane, step, role, layer):
    """The largest share of nonzero values that became zero at a site of this layer and role."""
    table = run.statistics(lane, ["count", "source_zero", "to_zero"], steps=[step]).reset_index()
    sites = run.sites[(run.sites.role == role) & (run.sites.layer == layer)].index
    of_sites = table[table.site.isin(sites)]
    return (of_sites.to_zero / (of_sites["count"] - of_sites.source_zero)).max()


def test_a_heat_map_cell_shows_its_share_and_opens_its_histogram(page_of, report, run):
    page = page_of(report)
    figure = page.locator("figure#heat-map-chart-1")
    figure.get_by_label("lane", exact=True).select_option(BROKEN)
    figure.get_by_label("measure", exact=True).select_option("zeroed")
    figure.get_by_label("role", exact=True).select_option("grad_activation")
    page.wait_for_url(f"**#heat-map-chart-1={BROKEN}/zeroed/grad_activation")
    cell = figure.locator("svg path[fill^='var(--heat-']").first
    cell.hover()
    layer, shown, _ = tip_of(figure)
    share = next(value for name, value in shown.items() if name.startswith("share of the nonzero values"))
    expected = zeroed(run, BROKEN, int(shown["step"]), "grad_activation", layer)
    assert float(share.rstrip("%")) / 100 == pytest.approx(expected, rel=0.01)

    cell.click()
    page.wait_for_url(re.compile(f"#histogram={BROKEN}/[0-9]+$"))
    histogram = page.locator("figure#histogram-chart-1")
    assert histogram.get_by_label("lane", exact=True).input_value() == BROKEN
    assert histogram.locator(".facts b").inner_text().startswith(f"{layer} ")
    assert "grad_activation" in histogram.locator(".facts b").inner_text()
    box = histogram.bounding_box()
    assert 0 <= box["y"] < page.viewport_size["height"] / 2, "the page scrolled to the histogram"
    page.go_back()
    page.wait_for_url(f"**#heat-map-chart-1={BROKEN}/zeroed/grad_activation")


def test_the_rows_of_the_heat_map_are_the_worst_first_or_in_the_networks_order(page_of, report, run):
    page = page_of(report)
    figure = page.locator("figure#heat-map-chart-1")
    known = set(run.sites.layer)

    def rows():
        texts = figure.locator("svg text").all_text_contents()
        return [text for text in texts if text in known]

    worst_first = rows()
    order = figure.get_by_label("rows", exact=True)
    assert order.locator("option").all_inner_texts() == ["worst first", "order of the network"]
    figure.get_by_label("lane", exact=True).select_option(BROKEN)
    cell = figure.locator("svg path[fill^='var(--heat-']").first
    order.select_option(label="order of the network")
    in_order = rows()
    layers = list(run.sites.layer.drop_duplicates())
    assert in_order == sorted(worst_first, key=layers.index) and in_order != worst_first
    cell.hover()  # a cell moved with its row
    layer, shown, _ = tip_of(figure)
    assert layer in known and shown["step"]
    order.select_option(label="worst first")
    assert rows() == worst_first


def test_a_measure_without_the_chosen_role_does_not_forget_it(page_of, report):
    page = page_of(report)
    figure = page.locator("figure#heat-map-chart-1")
    lane, measure, role = (figure.get_by_label(name, exact=True) for name in ("lane", "measure", "role"))
    lane.select_option(BROKEN)
    measure.select_option("zeroed")
    role.select_option("grad_activation")
    measure.select_option("swamped")  # of accumulators alone
    assert role.input_value() != "grad_activation"
    measure.select_option("zeroed")
    assert role.input_value() == "grad_activation"


def test_only_views_that_exist_can_be_selected(page_of, report):
    page = page_of(report)
    figure = page.locator("figure#heat-map-chart-1")
    selects = [figure.get_by_label(name, exact=True) for name in ("lane", "measure", "role")]
    seen = set()
    for lane in selects[0].locator("option").all_inner_texts():
        selects[0].select_option(lane)
        for measure in selects[1].locator("option").all_inner_texts():
            selects[1].select_option(measure)
            for role in selects[2].locator("option").all_inner_texts():
                selects[2].select_option(role)
                chosen = tuple(select.input_value() for select in selects)
                assert chosen == (lane, measure, role)
                assert figure.locator("svg path[fill^='var(--heat-']").count() > 0, chosen
                seen.add(chosen)
    assert len(seen) > 5


def exponents(run, lane, site):
    """Counts of the values by exponent, over all steps."""
    table = run.histograms(lane, [site], blocks=True).drop(columns="steps")
    return {number - 127: int(count) for number, count in enumerate(table.sum().to_numpy()) if 0 < number < 255}


def a_scaled_gradient(run):
    return int(
        run.sites[(run.sites.role == "grad_weight") & (run.sites.layer == "fc1") & (run.sites.point == "output")].index[
            0
        ]
    )


def test_a_histogram_has_the_counts_of_the_run_file(page_of, report, run):
    site = a_scaled_gradient(run)
    page = page_of(report, f"#histogram={SCALED}/{site}")
    figure = page.locator("figure#histogram-chart-1")
    assert (
        figure.locator(".facts b").inner_text()
        == figure.get_by_label("site", exact=True).locator(":checked").inner_text()
    )
    counts = exponents(run, SCALED, site)
    said = figure.locator(".plot").evaluate("""(plot) => Array.from({length: 100}, () => {
        plot.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
        return plot.parentElement.querySelector("[aria-live]").textContent; })""")
    seen = {}
    for text in said:  # the last exponent is repeated
        found = re.match(rf"2\^(-?\d+) to 2\^-?\d+: {SCALED} ([0-9,]+);", text)
        seen[int(found[1])] = int(found[2].replace(",", ""))
    assert {exponent: count for exponent, count in seen.items() if count} == {e: n for e, n in counts.items() if n}
    assert sum(counts.values()) > 1000
    assert tip_of(figure)[1][SCALED] == "0", "the tooltip is at the last exponent"


def test_the_slider_shifts_the_reference_and_says_what_is_lost(page_of, report, run):
    site = a_scaled_gradient(run)
    page = page_of(report, f"#histogram={SCALED}/{site}")
    figure = page.locator("figure#histogram-chart-1")
    counts = exponents(run, "fp32", site)
    total = sum(counts.values())
    slider = figure.get_by_label("loss scale", exact=True)
    outline = figure.locator("svg path[stroke='var(--accent)'][fill='none']").last
    slider.focus()
    drawn = set()
    for key in ("Home", "End", "ArrowLeft", "PageDown"):
        page.keyboard.press(key)
        k = int(slider.input_value())
        said = re.fullmatch(
            rf"at 2\^{k}: (\S+)% of the values become zero, (\S+)% exceed fp16's largest number",
            figure.locator("output").inner_text(),
        )
        # FP16: 2^-24 is the smallest number, values from 2^-25 on round up to it; emax is 15.
        lost = [sum(n for e, n in counts.items() if e + k < -25), sum(n for e, n in counts.items() if e + k > 15)]
        for text, count in zip(said.groups(), lost):
            assert float(text) == pytest.approx(100 * count / total, rel=0.01), (k, text)
        drawn.add(outline.get_attribute("d"))
    assert lost != [0, 0] or len(drawn) > 1
    assert len(drawn) == 4, "the outline moves"


def test_the_list_of_sites_is_filtered(page_of, report):
    page = page_of(report)
    figure = page.locator("figure#histogram-chart-1")
    sites = figure.get_by_label("site", exact=True).locator("option")
    everything = sites.count()
    figure.get_by_label("role", exact=True).select_option("grad_weight")
    figure.get_by_label("layer", exact=True).fill("fc*")
    names = sites.all_inner_texts()
    assert 0 < len(names) < everything
    assert all(name.startswith("fc") and "grad_weight" in name for name in names)
    assert figure.locator(".facts b").inner_text() in names
    figure.get_by_label("layer", exact=True).fill("no such layer")
    assert sites.count() == 0
    figure.get_by_label("layer", exact=True).fill("")
    assert sites.count() > len(names)


def test_a_chains_link_opens_the_histogram(page_of, report):
    page = page_of(report)
    link = page.locator("#chains a.open-histogram").first
    lane, site = link.get_attribute("data-lane"), link.get_attribute("data-site")
    link.click()
    page.wait_for_url(f"**#histogram={lane}/{site}")
    assert page.locator("#histogram-chart-1").get_by_label("site", exact=True).input_value() == site


def test_a_chart_has_its_table(page_of, report, run):
    page = page_of(report)
    figure = page.locator("figure#loss-chart-1")
    assert not figure.locator("table").is_visible()
    figure.locator("summary").click()
    assert figure.locator("tbody tr").count() == 3
    for chart in page.locator("figure.chart").all():
        assert chart.locator(".plot svg path").count() > 0 and chart.locator("details table").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_does_not_scroll_sideways(page_of, report, scheme):
    page = page_of(report, size=NARROW, color_scheme=scheme)
    assert overflow_of(page) == 0
    for plot in page.locator(".plot svg").all():
        assert plot.bounding_box()["width"] <= NARROW["width"]


PAPER = "getComputedStyle(document.body).backgroundColor"
LINE = """getComputedStyle(document.querySelector('#loss-chart-1 .plot svg path[stroke="var(--line-1)"]')).stroke"""


def luminance(page, expression):
    """Of a CSS colour that the expression computes, 0..1."""
    text = page.evaluate(expression)
    return sum(int(part) for part in re.findall(r"\d+", text)[:3]) / (3 * 255)


def test_dark_mode_turns_paper_and_lines(page_of, report):
    light, dark = page_of(report), page_of(report, color_scheme="dark")
    assert luminance(light, PAPER) > 0.9 > 0.3 > luminance(light, LINE)
    assert luminance(dark, PAPER) < 0.3 < 0.7 < luminance(dark, LINE)


def test_print_is_light_and_fits_the_paper(page_of, report):
    page = page_of(report, color_scheme="dark")
    wide = page.locator("#loss-chart-1 .plot svg").bounding_box()["width"]
    page.evaluate("""() => addEventListener('beforeprint', () => { document.title =
        String(document.querySelector('#loss-chart-1 .plot svg').getBoundingClientRect().width) })""")
    pdf = page.pdf(format="A4")
    assert pdf.startswith(b"%PDF") and len(pdf) > 20_000
    printed = float(page.title())
    assert printed < 720 < wide, "charts are as wide as the paper while printing"
    page.wait_for_function(
        """(wide) => document.querySelector('#loss-chart-1 .plot svg')
        .getBoundingClientRect().width === wide""",
        arg=wide,
    )  # and as before after it
    page.emulate_media(media="print")
    assert luminance(page, PAPER) > 0.9 > 0.3 > luminance(page, LINE)
    assert not page.locator("nav").is_visible()
