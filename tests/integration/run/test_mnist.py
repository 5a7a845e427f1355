"""The real digits, with the command of docs/models.md (400 steps, five lanes)."""

import re

import h5py
import numpy as np

LANES = ["fp32", "torch-autocast-fp16", "torch-autocast-bf16", "tf32", "pure-fp16"]
LOW = LANES[1:4]
# Layers whose gradients lose values in pure FP16 without a loss scale, and the share of nonzero
# values that at least one site of their backward pass must have lost.
LOSING, LOST_RATE = ["conv1", "conv2", "fc1"], 0.01


def percent(rate):
    """As the report prints a rate."""
    if rate == 0:
        return "."
    value = 100 * rate
    if value >= 99.95:
        return "100%"
    if value >= 10:
        return f"{value:.1f}%"
    return f"{value:.2f}%" if value >= 0.01 else f"{value:.0e}%"


def layer_rows(report, lane):
    """The rows of a lane's table in 'What rounding did': (layer, role, to zero, worst site)."""
    section = report[report.index("What rounding did") : report.index("Weight updates that came")]
    table = section[re.search(rf"^{re.escape(lane)}[:,]", section, re.M).start() :]
    lines = table.splitlines()
    header = next(i for i, line in enumerate(lines) if line.strip().startswith("layer  "))
    rule = lines[header + 1]
    edges = [m.span() for m in re.finditer("-+", rule)]
    rows = []
    for line in lines[header + 2 :]:
        if not line.strip():
            break
        cells = [line[a:b].strip() for a, b in edges[:-1]] + [line[edges[-1][0] :].strip()]
        rows.append((cells[0], cells[1], cells[2], cells[-1]))
    return rows


def lost_by_site(file, lane):
    """(layer, role in the report, 'op point') -> shares lost to zero before the loss broke."""
    group, sites = file["lanes"][lane], file["sites"]
    bad = np.flatnonzero(~np.isfinite(group["loss"][()]))
    steps = int(bad[0]) if len(bad) else len(group["loss"])
    counts = {
        name: group["counts"][name][:steps].astype(np.uint64).sum(axis=0)
        for name in ("count", "source_zero", "to_zero")
    }
    rates = {}
    for i in range(len(sites["id"])):
        nonzero = int(counts["count"][i] - counts["source_zero"][i])
        if nonzero == 0:
            continue
        layer, role, op, point = (sites[name][i].decode() for name in ("layer", "role", "op", "point"))
        if role == "accumulator" and sites["scaled"][i]:
            role = "grad sums"
        rates.setdefault((layer, role, f"{op} {point}"), []).append(int(counts["to_zero"][i]) / nonzero)
    return rates


def test_lenet_on_mnist(lockstep, mnist, tmp_path):
    path = tmp_path / "mnist.h5"
    lockstep(
        "replay",
        "lenet",
        "--data",
        f"mnist:{mnist}",
        "--steps",
        400,
        "--batch",
        64,
        "--lanes",
        ",".join(LANES),
        "-o",
        path,
    )
    report = lockstep("report", path).stdout
    with h5py.File(path, "r") as file:
        correct, answers = {}, {}
        for lane in LANES:
            answers[lane] = int(file["lanes"][lane]["eval/example_count"][-1])
            share = float(file["lanes"][lane]["eval/accuracy"][-1])
            correct[lane] = round(share * answers[lane]) if np.isfinite(share) else None
        print("correct held-out answers:", correct, "of", answers["fp32"])
        assert 100 * correct["fp32"] >= 96 * answers["fp32"]
        for lane in LOW:
            assert answers[lane] == answers["fp32"]
            assert 100 * abs(correct[lane] - correct["fp32"]) <= answers["fp32"], lane
        rates = lost_by_site(file, "pure-fp16")
    rows = layer_rows(report, "pure-fp16")
    assert len(rows) > 10
    printed = 0
    for layer, role, to_zero, site in rows:
        # The report may have cut the middle of the site's name to fit the page.
        head, cut, tail = site.partition("…")
        of_site = [
            rate
            for (at, what, name), found in rates.items()
            for rate in found
            if (at or "-", what) == (layer, role)
            and (name.startswith(head) and name.endswith(tail) if cut else name == site)
        ]
        assert to_zero in [percent(r) for r in of_site], (layer, role, to_zero, of_site)
        printed += 1
    assert printed > 10
    for layer in LOSING:
        lost = [row for row in rows if row[0] == layer and (row[1].startswith("grad_") or row[1] == "grad sums")]
        assert any(row[2].endswith("%") and float(row[2][:-1]) >= 100 * LOST_RATE for row in lost), (layer, lost)
