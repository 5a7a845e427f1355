"""The study of fixes: `recommend --fix` on the lanes in which a planted fault fires.

The hand-planted networks are those of support/hand_planted.py. The generated ones come from planted_faults.py; the seeds
of the figure are FIRST_SEED and following, and nothing was developed with them. A fix counts when its policy, written
by -o and replayed as a user would, has no finding of the planted kind at its layer any more, and a loss within the
tolerance: 2 % of the fall of FP32's loss, never below what one ulp does.

    python tests/integration/study/fixes.py hand|FIRST:COUNT      runs these and prints the page
"""

import concurrent.futures
import hashlib
import json
import multiprocessing
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import planted_faults as faults
import planted_runner as runner

sys.path.append(str(runner.SOURCE / "tests" / "integration" / "support"))
import hand_planted as hand  # noqa: E402

FIRST_SEED, COUNT = 0, 50
ANSWERS = {0, 3}  # exit codes: fixed or nothing to fix, not fixed


def hand_cases():
    """(name, lane) of every hand-planted network and lane in which its fault fires."""
    cases = [(fault.name, lane) for fault in hand.FAULTS for lane in fault.fires]
    cases += [(name, lane) for name, _, fires, _ in hand.BUILT_IN for lane in fires]
    return [*cases, ("a loop without a GradScaler", hand.FP16)]


def hand_run(name, lane, folder):
    """The run file of a hand-planted network, in the lane."""
    run, options = folder / "run.h5", ()
    built_in = next((row for row in hand.BUILT_IN if row[0] == name), None)
    if lane.endswith(".toml"):
        shutil.copy(runner.SOURCE / lane, folder)
        lane = pathlib.Path(lane).name
    if built_in:
        command = ["replay", *built_in[1]]
    else:
        fault = next((fault for fault in hand.FAULTS if fault.name == name), None)
        path = hand.capture_without_scaler(folder / "net.h5") if fault is None else hand.capture(fault, folder / "net.h5")
        options = ("--cycle", "--steps", 60) if fault is None or not fault.replay else fault.replay
        command = ["replay", path.name]
    runner.lockstep(folder, *command, *options, "--lanes", f"fp32,{lane}", *runner.CHEAP, "-o", run.name)
    return run, lane


def fixed(run, lane, folder):
    """The program's own answer on the lane of a run."""
    done = subprocess.run([runner.binary(), "recommend", run.name, "--fix", lane, "--json", "-o", "fix.toml"],
                          capture_output=True, text=True, cwd=folder)
    if done.returncode not in ANSWERS:
        raise runner.Refused(f"exit code {done.returncode}: {done.stderr.strip()[-600:]}")
    return json.loads(done.stdout)


def outcome_of(case, run, lane, folder):
    begin = time.time()
    found = fixed(run, lane, folder)
    chosen = found["tried"][found["fix"]] if "fix" in found else None
    after = chosen or found["before"]
    return {**case, "lane": lane, "answer": found["answer"], "grade": chosen["grade"] if chosen else "no",
            "sentence": found["sentence"], "finding": found["finding"], "kinds": found["before"]["findings"][:1],
            "fix": "; ".join(edit["words"] for edit in chosen["edits"]) if chosen else "",
            "changes_run": bool(chosen) and any(e.get("changes") or e.get("rewrites") for e in chosen["edits"]),
            "before": found["before"]["loss"], "after": after["loss"], "fp32": after["reference_loss"],
            "gap": after["gap"], "tolerance": after["tolerance"], "fall": after["reference_fall"],
            "verdict": after["verdict"], "tried": len(found["tried"]), "untested": found["untested"],
            "seconds": round(time.time() - begin, 1)}


def one(case):
    """The outcome of a case as a dictionary; a case that could not be run says so."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fixes-"))
    try:
        if "seed" in case:
            plant, run, _ = faults.planted(case["seed"], folder)
            case = {**case, "name": plant.model, "about": f"{plant.kind}: {plant.about}"}
            return outcome_of(case, run, plant.lane, run.parent)
        run, lane = hand_run(case["name"], case["wanted"], folder)
        return outcome_of({**case, "about": case["name"]}, run, lane, folder)
    except Exception as error:
        return {**case, "error": f"{type(error).__name__}: {error}"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sources():
    """Hash of the program, the capture and the generators: an outcome that was kept counts only under the same."""
    digest = hashlib.sha256(pathlib.Path(runner.binary()).read_bytes())
    capture = pathlib.Path(runner.lockstep_capture.__file__).parent
    here = pathlib.Path(__file__).parent
    for path in sorted([*here.glob("planted_*.py"), here / "fixes.py", pathlib.Path(hand.__file__), *capture.rglob("*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def run(cases, kept=None, workers=2):
    """The outcomes of the cases, in order. `kept`: a folder for what earlier calls found."""
    key, found, todo = sources(), {}, []
    path_of = lambda case: pathlib.Path(kept) / ("fix-" + hashlib.sha256(json.dumps(case).encode()).hexdigest()[:16] + ".json")
    for i, case in enumerate(cases):
        if kept and path_of(case).exists() and (old := json.loads(path_of(case).read_text()))["key"] == key:
            found[i] = old["found"]
        else:
            todo.append(i)
    with concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for i, outcome in zip(todo, pool.map(one, [cases[i] for i in todo])):
            found[i] = outcome
            if kept:
                pathlib.Path(kept).mkdir(parents=True, exist_ok=True)
                path_of(cases[i]).write_text(json.dumps({"key": key, "found": outcome}))
    return [found[i] for i in range(len(cases))]


def cases_of(words):
    if words == "hand":
        return [{"name": name, "wanted": lane} for name, lane in hand_cases()]
    first, _, count = words.partition(":")
    return [{"seed": seed} for seed in range(int(first), int(first) + int(count or 1))]


def main():
    kept = pathlib.Path(os.environ["LOCKSTEP_FIXES_KEPT"]) if "LOCKSTEP_FIXES_KEPT" in os.environ else None
    for outcome in run(cases_of(sys.argv[1]), kept):
        keys = ("seed", "name", "about", "lane", "answer", "grade", "finding", "fix", "before", "after", "fp32", "gap",
                "tolerance", "verdict", "tried", "seconds", "error")
        print(" | ".join(f"{key} {outcome[key]:.4g}" if isinstance(outcome.get(key), float) else f"{key} {outcome[key]}"
                         for key in keys if key in outcome))


if __name__ == "__main__":
    main()
