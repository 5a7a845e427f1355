"""The study of planted faults: what the report names first, next to what was planted.

A case is right when the kind and the layer of the lane's first finding are those of the planted fault
(planted_names.py says which names are the same thing). A clean run is right when no lane of it has a finding. The seeds
of the figure are FIRST_SEED and following; nothing was developed with them.

    python tests/integration/study/diagnosis.py FIRST:COUNT      runs these seeds and prints the page
"""

import collections
import concurrent.futures
import dataclasses
import hashlib
import json
import multiprocessing
import os
import pathlib
import shutil
import sys
import tempfile

import planted_faults as faults
import planted_names as names
import planted_runner as runner

FIRST_SEED, COUNT = 10000, 200
RIGHT_AT_LEAST = 196 / 200  # of the planted cases
CLEAN_AT_MOST = 2 / 200  # findings on a clean run


def seeds():
    """The seeds to run: LOCKSTEP_STUDY_SEEDS=FIRST:COUNT, or those of the figure."""
    first, _, count = os.environ.get("LOCKSTEP_STUDY_SEEDS", f"{FIRST_SEED}:{COUNT}").partition(":")
    return range(int(first), int(first) + int(count or 1))


def sources():
    """Hash of the program, the capture and this generator: an outcome that was kept counts only under the same."""
    digest = hashlib.sha256(pathlib.Path(runner.binary()).read_bytes())
    capture = pathlib.Path(runner.lockstep_capture.__file__).parent
    for path in sorted([*pathlib.Path(__file__).parent.glob("planted_*.py"), *capture.rglob("*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def one(task):
    """The outcome of one seed as a dictionary; a case that could not be run says so."""
    seed, clean = task
    folder = tempfile.mkdtemp(prefix="diagnosis-")
    try:
        if clean:
            words, found, command = faults.run_clean(seed, folder)
            return {"seed": seed, "model": words, "found": found}
        outcome = dataclasses.asdict(faults.run_planted(seed, folder))
        outcome.pop("command")
        return outcome
    except Exception as error:
        return {"seed": seed, "error": f"{type(error).__name__}: {error}"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(seed_range, clean, kept=None, workers=2):
    """The outcomes of the seeds, in order. `kept`: a folder for what earlier calls found."""
    key = sources()
    found, todo = {}, []
    for seed in seed_range:
        path = kept and pathlib.Path(kept) / f"diagnosis-{'clean' if clean else 'planted'}-{seed}.json"
        if path and path.exists() and json.loads(path.read_text())["key"] == key:
            found[seed] = json.loads(path.read_text())["found"]
        else:
            todo.append((seed, clean))
    with concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for outcome in pool.map(one, todo):
            found[outcome["seed"]] = outcome
            if kept:
                pathlib.Path(kept).mkdir(parents=True, exist_ok=True)
                path = pathlib.Path(kept) / f"diagnosis-{'clean' if clean else 'planted'}-{outcome['seed']}.json"
                path.write_text(json.dumps({"key": key, "found": outcome}))
    return [found[seed] for seed in seed_range]


def matrix(outcomes):
    """Rows of the confusion matrix, planted x named. A cell in brackets: the right kind at a wrong layer."""
    kinds = [kind for kind in faults.KINDS if any(o["kind"] == kind for o in outcomes)]
    columns = sorted({o["named"] or "nothing" for o in outcomes})
    rows = ["| planted \\ named | " + " | ".join(columns) + " | right | of |", "|---" * (len(columns) + 3) + "|"]
    for kind in kinds:
        mine = [o for o in outcomes if o["kind"] == kind]
        cells = []
        for column in columns:
            here = [o for o in mine if (o["named"] or "nothing") == column]
            wrong = sum(o["right_kind"] and not o["right"] for o in here)
            cells.append((f"{len(here)}" + f" ({wrong})" * (wrong > 0)) if here else "")
        rows.append(f"| {kind} | " + " | ".join(cells) + f" | {sum(o['right'] for o in mine)} | {len(mine)} |")
    return rows


def escaped(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def wrong_rows(outcomes):
    rows = ["| seed | planted | where | named | where | sentence |", "|---" * 6 + "|"]
    for o in outcomes:
        where = ", ".join(o["layers"]) if o["layers"] else "the lane"
        rows.append(
            "| "
            + " | ".join(
                map(
                    escaped,
                    [
                        o["seed"],
                        f"{o['kind']}: {o['about']}",
                        where,
                        o["named"] or "nothing",
                        o["named_layer"] or "-",
                        o["sentence"],
                    ],
                )
            )
            + " |"
        )
    return rows


def page(planted, clean):
    failed = [o for o in planted + clean if "error" in o]
    planted = [o for o in planted if "error" not in o]
    clean = [o for o in clean if "error" not in o]
    right = sum(o["right"] for o in planted)
    reported = [(o, row) for o in clean for row in o["found"]]
    redraws = collections.Counter(o["kind"] for o in planted for _ in o["reasons"])
    rows = [
        "# Diagnosis: what the report names first, next to what was planted",
        "",
        "Written by `./dev study diagnosis`. A seeded generator draws a kind of fault, a model, a layer and the "
        "numbers, and plants that fault. It was written without",
        "sight of the rules by which the report judges. That "
        "the fault fires, and comes first, is checked with the counts of the run file; a case in which it",
        "does not "
        "is drawn again. Right: kind and layer of the lane's first finding are the planted ones "
        "(`tests/integration/study/planted_names.py` says which names",
        "mean the same). Clean runs are such models "
        "without a fault, under FP16 autocast with a scaler, BF16 autocast and TF32.",
        "",
        f"- planted: **{right} of {len(planted)} right**; kind right, layer wrong: "
        f"{sum(o['right_kind'] and not o['right'] for o in planted)}; nothing named: "
        f"{sum(o['named'] is None for o in planted)}",
        f"- clean: findings on {len(clean)} runs of {len(faults.CLEAN_LANES)} lanes each, which all are wrong: "
        f"**{len(reported)}**",
        f"- redraws: {sum(redraws.values())}"
        + (
            "" if not redraws else " (" + ", ".join(f"{kind}: {count}" for kind, count in sorted(redraws.items())) + ")"
        ),
        "",
        "`python tests/integration/study/planted_faults.py --seed N` repeats a case, with `--clean` the clean run.",
        "",
        "## Planted kind × named kind",
        "",
        "In brackets: of these, at a wrong layer.",
        "",
        *matrix(planted),
        "",
        "## Wrong cases",
        "",
    ]
    wrong = [o for o in planted if not o["right"]]
    rows += wrong_rows(wrong) if wrong else ["None."]
    rows += ["", "## Findings on clean runs", ""]
    rows += (
        ["| seed | model | lane | named | where | sentence |", "|---" * 6 + "|"]
        + ["| " + " | ".join(map(escaped, [o["seed"], o["model"], *row])) + " |" for o, row in reported]
        if reported
        else ["None."]
    )
    rows += ["", "## Names that are right", "", "| planted | accepted |", "|---|---|"]
    rows += [f"| {kind} | {', '.join(sorted(accepted))} |" for kind, accepted in names.ACCEPTED.items()]
    if failed:
        rows += ["", "## Cases that could not be run", ""]
        rows += [f"- seed {o['seed']}: {escaped(o['error'])[:800]}" for o in failed]
    return "\n".join(rows) + "\n"


def main():
    os.environ["LOCKSTEP_STUDY_SEEDS"] = sys.argv[1]
    clean_seeds = range(seeds()[0], seeds()[0] + int(sys.argv[2])) if len(sys.argv) > 2 else seeds()
    kept = pathlib.Path(runner.binary()).parent / "study"
    print(page(run(seeds(), False, kept), run(clean_seeds, True, kept)))


if __name__ == "__main__":
    main()
