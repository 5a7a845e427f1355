"""How well the predictions of parts_truth.py fit the truth, as a page."""

import math

import numpy as np
from parts_truth import FORMATS

WORST = 3
# The wide bar was chosen on the first network of every family but these.
NOT_CHOSEN_ON = {"experts", "state space", "conv1d audio", "u-net"}
MISSES = 40  # most rows of the list of misses


def mean(values):
    return float(np.mean(values))


def true_of(cell):
    """The mean effect of each part alone."""
    return np.array([mean(part.true) for part in cell.parts])


def predicted(cell, second=True):
    return np.array([part.first + (part.second if second else 0) for part in cell.parts])


def errors(cell):
    return np.array([part.error for part in cell.parts])


def bar(cell):
    """Half-width, of all parts: two standard errors of the sum, which the batches give."""
    return 2 * math.sqrt(float((errors(cell) ** 2).sum()))


def wide_bar(cell):
    """In the whole network each part rounds other inputs than it does alone: the first order is drawn a second time."""
    return math.sqrt(2) * bar(cell)


def is_counted(cell):
    """Its effect is more than twice what one ulp of the weights does."""
    return math.isfinite(mean(cell.true)) and abs(mean(cell.true)) > 2 * mean(np.abs(cell.twin))


def correlation(cell, second=True):
    return float(np.corrcoef(predicted(cell, second), true_of(cell))[0, 1])


def off(cell, second=True):
    return mean(cell.true) - float(predicted(cell, second).sum())


def is_inside(cell, half, second=True):
    return abs(off(cell, second)) <= half(cell)


def has_worst(cell, second=True, bars=True):
    """The parts that raise the loss most are those that were predicted to, or within each other's bars."""
    said, error = predicted(cell, second), errors(cell) * bars
    true = set(np.argsort(-true_of(cell))[:WORST].tolist())
    here = set(np.argsort(-said)[:WORST].tolist())
    return all(abs(said[i] - said[j]) <= 2 * math.hypot(error[i], error[j]) for i in true - here for j in here - true)


def share(flags):
    flags = list(flags)
    return f"{sum(flags)} of {len(flags)} ({100 * sum(flags) / len(flags):.0f} %)"


def median(values):
    return float(np.median(list(values)))


def widths(cells, half):
    return median(half(cell) / abs(mean(cell.true)) for cell in cells)


def criteria(cells):
    def row(name, asked, of):
        return f"| {name} | {asked} | {of(False)} | {of(True)} |"

    return [
        "| | asked | first order alone | first and second |",
        "|---|---|---|---|",
        row(
            "correlation over the parts, median cell",
            "0.9",
            lambda s: f"{median(correlation(c, s) for c in cells):.3f}",
        ),
        row("cells with a correlation of 0.9 or more", "", lambda s: share(correlation(c, s) >= 0.9 for c in cells)),
        row("effect of all parts within the bar", "95 %", lambda s: share(is_inside(c, bar, s) for c in cells)),
        row("within the wide bar", "95 %", lambda s: share(is_inside(c, wide_bar, s) for c in cells)),
        row(
            "the three worst parts right, or within each other's bars",
            "90 %",
            lambda s: share(has_worst(c, s) for c in cells),
        ),
        row("the three worst parts right", "", lambda s: share(has_worst(c, s, bars=False) for c in cells)),
        "",
        f"Half-width over effect, median: bar {widths(cells, bar):.2f}, wide bar {widths(cells, wide_bar):.2f} (asked: at most 1).",
    ]


def group_rows(cells, key, values):
    rows = []
    for value in values:
        group = [cell for cell in cells if key(cell) == value]
        if not group:
            continue
        measured = [
            value,
            str(len(group)),
            f"{median(correlation(c, False) for c in group):.3f}",
            f"{median(map(correlation, group)):.3f}",
            f"{min(map(correlation, group)):.2f}",
            share(is_inside(c, bar) for c in group),
            share(is_inside(c, wide_bar) for c in group),
            f"{widths(group, bar):.2f}",
            f"{widths(group, wide_bar):.2f}",
            f"{median(abs(mean(c.true) - true_of(c).sum()) / abs(mean(c.true)) for c in group):.2f}",
            share(map(has_worst, group)),
        ]
        rows.append("| " + " | ".join(measured) + " |")
    return rows


HEADER = [
    "| | cells | correlation, first order | both | least | within the bar | within the wide bar | bar over effect | wide bar over effect "
    "| interaction over effect | three worst |",
    "|---" * 11 + "|",
]


def misses(cells):
    found = []
    for cell in cells:
        wrong = []
        if correlation(cell) < 0.9:
            wrong.append(f"correlation {correlation(cell):.2f}")
        if not is_inside(cell, wide_bar):
            wrong.append(f"all parts: {predicted(cell).sum():+.1e} ± {wide_bar(cell):.1e}, true {mean(cell.true):+.1e}")
        if not has_worst(cell):
            wrong.append("worst parts")
        if wrong:
            found.append(f"- {cell.network}, {cell.state}, {cell.format}: {'; '.join(wrong)}")
    return found


def page(cells, states, planned, seconds):
    """planned: the networks of the whole study."""
    counted = [cell for cell in cells if is_counted(cell)]
    networks = list(dict.fromkeys(cell.network for cell in cells))
    families = list(dict.fromkeys(cell.family for cell in cells))
    missed = misses(counted)
    firsts = dict(reversed([(cell.family, cell.network) for cell in cells]))
    chosen_on = {name for family, name in firsts.items() if family not in NOT_CHOSEN_ON}
    later = [cell for cell in counted if cell.network not in chosen_on]
    confirmed = f", for the others {share(is_inside(c, wide_bar) for c in later)}" if later else ""
    left = sorted({network.family for network in planned} - set(families))
    rows = [
        "# Parts: what they predict of the loss, and what the whole network does",
        "",
        f"`./dev study parts` writes this page. Here {len(networks)} of its {len(planned)} networks ran, of {len(families)} families, {' and '.join(states)},",
        f"four batches each, in {seconds / 60:.0f} minutes. Networks are tiny (1 to 3 blocks, 8 to 128 wide, 16 to 512 tokens or examples a batch) and their tasks synthetic.",
        "",
        *([f"Families that did not run: {', '.join(left)}.", ""] if left else []),
        "Each network's blocks are captured as parts on four batches with the same weights and replayed as a folder; `lockstep report` gives each part's effect on",
        "the loss: first order, second order, and a standard error over the batches. The truth is the whole network, captured with the same weights and batches, in lanes",
        "that keep every layer but one part's in FP32, and in one lane with all parts in the format. The loss itself stays in FP32 (autocast on CUDA rounds it, too: that is in",
        f"no part). Formats: {', '.join(FORMATS)}; e4m3 is `fp8-current`, in convolutions, too. A format is left out where a part has nothing to scale and would run in",
        "BF16, so convolutions are not in mxfp8 and nvfp4, and recurrent layers in bf16 and fp16 alone.",
        "",
        f"A cell is a network in a state and a format: {len(cells)}. {len(counted)} are counted: the true effect of all their parts is more than twice that of one ulp in every",
        "weight. *Bar*: two standard errors of the sum over the parts. *Wide bar*: √2 of it, because in the whole network a part rounds other inputs than it does alone, which",
        "draws the first order a second time. *Interaction*: how far the true effects of single parts, added up, are from that of all.",
        "",
        *criteria(counted),
        "",
        "What is asked and not reached: bars are wider than the effect where the effect is itself noise of roundings, in bf16 and fp16 foremost; only more batches narrow",
        "them. The second order takes gradients' outer products for the curvature, which holds for a likelihood: for mean squared error (the autoencoder) it is far too small.",
        "The three worst of four or five parts are easily right by chance: of four, in one case of four. The wide bar was",
        f"chosen on cells of {len(chosen_on)} of these networks, for which it holds in {share(is_inside(c, wide_bar) for c in counted if c.network in chosen_on)}{confirmed}.",
        "",
        *HEADER,
        *group_rows(counted, lambda c: c.format, FORMATS),
        *group_rows(counted, lambda c: c.state, states),
        *group_rows(counted, lambda c: c.family, families),
        "",
        f"## Misses: {len(missed)} of {len(counted)} cells",
        "",
        "Correlation below 0.9, the effect of all parts outside the wide bar, or worst parts neither right nor within each other's bars.",
        "",
        *missed[:MISSES],
    ]
    if len(missed) > MISSES:
        rows.append(f"- and {len(missed) - MISSES} more")
    return "\n".join(rows) + "\n"
