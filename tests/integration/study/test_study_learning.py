"""Study: the long runs of learning.py. Writes docs/study/learning.md when LOCKSTEP_STUDY_DIR is set."""

import os
import pathlib

import learning

WORDS = {
    "accuracy": "held-out accuracy, at least",
    "nats": "held-out nats per character, at most",
    "share": "last tenth's loss / first loss, at most",
}


def test_every_model_learns(lockstep, mnist, corpus, tmp_path):
    rows = [
        "# Learning: every built-in model, FP32 and BF16 autocast",
        "",
        "The figures to reach were chosen before any run, the options after pilot runs "
        "(tests/integration/study/learning.py). CPU seconds",
        "are those of the whole run: both lanes, all statistics, all threads. Repeat with `./dev study`.",
        "",
        "| model | data | figure | to reach | " + " | ".join(learning.LANES) + " | CPU s | at most |",
        "|---" * (6 + len(learning.LANES)) + "|",
    ]
    missed = []
    for run in learning.LONG:
        spec = {"mnist": f"mnist:{mnist}", "text": f"text:{corpus}"}.get(run.data, "")
        found, cpu_seconds = learning.learn(lockstep, run, tmp_path / f"{run.name}.h5", spec)
        cells = [f"{figure:.3f}" for figure in found.values()]
        cells += [f"{cpu_seconds:.0f}", f"{run.cpu_limit}" if run.cpu_limit else ""]
        rows.append(
            f"| {run.model} | {run.data or 'synthetic'} | {WORDS[run.figure[0]]} | {run.figure[1]} | "
            + " | ".join(cells)
            + " |"
        )
        print(rows[-1], flush=True)
        missed += [
            f"{run.name} {lane}: {figure}" for lane, figure in found.items() if not learning.reached(run.figure, figure)
        ]
        if run.cpu_limit and cpu_seconds > run.cpu_limit:
            missed.append(f"{run.name}: {cpu_seconds:.0f} s of CPU")
    folder = os.environ.get("LOCKSTEP_STUDY_DIR")
    if folder:
        pathlib.Path(folder, "learning.md").write_text("\n".join(rows) + "\n")
    assert not missed
