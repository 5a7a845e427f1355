"""Results of the zoo -> the page docs/study/zoo.md. Measures nothing."""

import collections
import re
import statistics
from collections.abc import Iterable
from typing import Any

from .registry import Network
from .runner import perfect

Results = dict[str, dict[str, Any]]  # by the network's name
MODES = {"fp32": "FP32", "bfloat16": "BF16 autocast"}

FILE_MARK, MEMORY_MARK = 40, 40  # bytes per parameter
SECONDS_MARK, STEPS_MARK = 20, 20  # for captures of 8 steps: seconds below LARGE parameters, plain steps from there on
LARGE = 10_000_000
_ENOUGH = 1_000_000  # parameters from which bytes per parameter mean something

INTRO = """# Zoo: which networks can be captured

Written by `./dev study zoo`. Small networks with random weights, built from the configurations of packages that people use or written here as published.
Each is trained for three steps with AdamW, in FP32 and under CPU BF16 autocast, in a process of its own: without a capture, then with one; then `lockstep verify`
and `lockstep replay` with the lanes `fp32`, `torch-autocast-bf16` and `torch-autocast-fp16`.

- *captured*: the file was written. *verified*: all of its gates that apply passed. *replayed*: the replay with three lanes ended well.
- *same bits*: losses, weights, buffers, gradients, batches and random generators after training with the capture equal those without, bit for bit. This is
  compared for refused captures, too.
- *held out*: networks that were added after the work was done, and never run before.

What this does not show: that large models of the same kind can be captured, or that their numerics are like those of the small ones."""


def page(networks: dict[str, Network], found: dict[str, Results], note: str = "") -> str:
    """found: by autocast's name, "fp32" or "bfloat16". note: what to know of these results."""
    rows = [INTRO, *(["", note] if note else []), "", "## Summary", "", *_summary(networks, found)]
    rows += ["", "## Families", "", *_groups(networks, found, "family", lambda network: network.family)]
    rows += [
        "",
        "## Packages",
        "",
        *_groups(networks, found, "package", lambda network: network.package or "written here"),
    ]
    rows += ["", "## Refused", "", *_refused(networks, found)]
    rows += ["", "## Failed", "", *_failed(found)]
    rows += ["", "## Cost", "", *_cost(found["fp32"])]
    return "\n".join(rows) + "\n"


def counts(results: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Of networks that could be built and trained. perfect: captured, verified, replayed, same bits."""
    tried = [r for r in results if r["status"] not in ("absent", "broken")]
    captured = [r for r in tried if r["status"] == "captured"]
    return {
        "tried": len(tried),
        "captured": len(captured),
        "verified": sum(bool(r["faithful"]) for r in captured),
        "replayed": sum(bool(r["replayed"]) for r in captured),
        "same bits": sum(bool(r["same_bits"]) for r in tried),
        "perfect": sum(map(perfect, captured)),
    }


def _summary(networks: dict[str, Network], found: dict[str, Results]) -> list[str]:
    packages = {network.package for network in networks.values()} - {""}
    families = {network.family for network in networks.values()}
    rows = [
        f"{len(networks)} networks of {len(families)} families, from {len(packages)} packages and written here.",
        "",
        "| networks | training | tried | captured | verified of captured | replayed of captured | same bits |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, held_out in (("all but held out", False), ("held out", True)):
        for mode, name in MODES.items():
            part = counts(r for key, r in found[mode].items() if networks[key].held_out is held_out)
            if part["tried"]:
                cells = [
                    str(part["tried"]),
                    _share(part["captured"], part["tried"]),
                    _share(part["verified"], part["captured"]),
                    _share(part["replayed"], part["captured"]),
                    _share(part["same bits"], part["tried"]),
                ]
                rows.append("| " + " | ".join([label, name, *cells]) + " |")
    return rows


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else "0"


def _groups(networks: dict[str, Network], found: dict[str, Results], title: str, key: Any) -> list[str]:
    rows = [
        f"| {title} | networks | "
        + " | ".join(f"{name}: captured | verified | replayed" for name in MODES.values())
        + " |",
        "|---" * (2 + 3 * len(MODES)) + "|",
    ]
    grouped = collections.defaultdict(list)
    for name, network in networks.items():
        grouped[key(network)].append(name)
    for group, names in sorted(grouped.items()):
        if not any(name in results for results in found.values() for name in names):
            continue
        cells = [group, str(len(names))]
        for mode in MODES:
            part = counts(found[mode][name] for name in names if name in found[mode])
            cells += [f"{part['captured']} of {part['tried']}", str(part["verified"]), str(part["replayed"])]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def reasons(result: dict[str, Any]) -> list[str]:
    """What a refusal lists, without places."""
    lines = [line for line in result["message"].replace("lockstep_capture: ", "").splitlines() if line.strip()]
    listed = [match[1].strip() for match in (re.match(r"  (\S.*?)\s+x\d+\s+in ", line) for line in lines) if match]
    return listed or [lines[0][:160] if lines else "no message"]


def _refused(networks: dict[str, Network], found: dict[str, Results]) -> list[str]:
    rows = ["| reason | FP32 | BF16 autocast | a way out, tried |", "|---|---|---|---|"]
    grouped: dict[str, dict[str, list[str]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for mode, results in found.items():
        for name, result in results.items():
            if result["status"] == "refused":
                for reason in reasons(result):
                    grouped[reason][mode].append(name)
    for reason, modes in sorted(grouped.items(), key=lambda item: -sum(map(len, item[1].values()))):
        names = dict.fromkeys(name for mode in MODES for name in modes[mode])
        ways = dict.fromkeys(
            f"{networks[name].way_out} ({networks[name].tried_by})" for name in names if networks[name].tried_by
        )
        rows.append(
            "| "
            + " | ".join([reason.replace("|", "\\|"), *(", ".join(modes[mode]) for mode in MODES), "; ".join(ways)])
            + " |"
        )
    return rows if grouped else ["Nothing."]


def _failed(found: dict[str, Results]) -> list[str]:
    rows = []
    for mode, results in found.items():
        for name, result in sorted(results.items()):
            told = []
            if result["status"] in ("crash", "timeout"):
                told.append(result["message"].splitlines()[0])
            if result["same_bits"] is False:
                told.append(f"training differs in {result['different']}")
            if result["status"] == "captured" and not result["faithful"]:
                told.append(_first(result["verify_message"]))
            if result["status"] == "captured" and not result["replayed"]:
                told.append(_first(result["replay_message"]))
            rows += [f"- {name} ({MODES[mode]}): {text}" for text in told]
        for word in ("absent", "broken"):
            names = [name for name, result in results.items() if result["status"] == word]
            if names:
                why = (
                    "its package is not installed"
                    if word == "absent"
                    else "it does not train here without a capture, either"
                )
                rows.append(f"- not tried ({MODES[mode]}), {why}: {', '.join(names)}")
    return rows or ["Nothing."]


def _first(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"/\S*/", "", text))[:300]  # no folders of this machine


def _cost(results: Results) -> list[str]:
    captured = [r for r in results.values() if r["status"] == "captured"]
    rows = [
        "FP32, one thread of PyTorch on a busy machine. *more*: capturing, over the same steps without a capture. Bytes of a file are without those of the",
        f"batches, and count from {_ENOUGH // 1_000_000} M parameters on: below, the graph is most of the file. The marks are for 8 steps; *per step* is what was measured.",
        "",
        "| parameters | networks | more seconds (median, most) | more, in plain steps (median) | verify, seconds | replay, seconds | file, bytes per parameter (most) | verify, memory over the file's, bytes per parameter (most) | replay (most) |",
        "|---" * 9 + "|",
    ]
    for label, low, high in (
        ("below 1 M", 0, _ENOUGH),
        ("1 to 10 M", _ENOUGH, LARGE),
        ("10 M and more", LARGE, 1 << 60),
    ):
        part = [r for r in captured if low <= r["parameters"] < high]
        if not part:
            continue
        more = [r["capture_seconds"] - r["plain_seconds"] for r in part]
        steps = [m / (r["plain_seconds"] / (r.get("steps") or 3)) for m, r in zip(more, part)]
        cells = [
            label,
            str(len(part)),
            f"{statistics.median(more):.2g}, {max(more):.2g}",
            f"{statistics.median(steps):.0f}",
        ]
        cells += [f"{statistics.median(r[key] for r in part):.2g}" for key in ("verify_seconds", "replay_seconds")]
        if low:
            cells.append(f"{max((r['file_bytes'] - r['batch_bytes']) / r['parameters'] for r in part):.0f}")
            cells += [
                f"{max((r[key] - r['file_bytes']) / r['parameters'] for r in part):.0f}"
                for key in ("verify_peak", "replay_peak")
            ]
        else:
            cells += ["", "", ""]
        rows.append("| " + " | ".join(cells) + " |")
    rows.append(
        f"| mark | | {SECONDS_MARK} s below 10 M | {STEPS_MARK} from 10 M on | | | {FILE_MARK} | {MEMORY_MARK} | {MEMORY_MARK} |"
    )
    return rows
