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
FIXED = "fix.toml"
# FP32 must learn, or its fall tolerates nothing. Three networks are too slow for as many.
STEPS = 60
STEPS_OF = {"bf16 weights stand still": 12, "sums of a batch norm": 8, "too many micro-batches for bf16": 6}


def hand_cases():
    """(name, lane) of every hand-planted network and lane in which its fault fires."""
    cases = [(fault.name, lane) for fault in hand.FAULTS for lane in fault.fires]
    cases += [(name, lane) for name, _, fires, _ in hand.BUILT_IN for lane in fires]
    return [*cases, ("a loop without a GradScaler", hand.FP16)]


def hand_command(name, lane, folder):
    """The replay of a hand-planted network, and the name of its lane there."""
    if lane.endswith(".toml"):
        shutil.copy(runner.SOURCE / lane, folder)
        lane = pathlib.Path(lane).name
    built_in = next((row for row in hand.BUILT_IN if row[0] == name), None)
    if built_in:
        return ["replay", *map(str, built_in[1]), "--lanes", f"fp32,{lane}"], lane
    fault = next((fault for fault in hand.FAULTS if fault.name == name), None)
    path = folder / "net.h5"
    hand.capture_without_scaler(path) if fault is None else hand.capture(fault, path)
    return ["replay", path.name, "--lanes", f"fp32,{lane}", *map(str, fault.replay if fault else ())], lane


def with_option(command, name, value):
    command = list(map(str, command))
    if name in command:
        command[command.index(name) + 1] = str(value)
        return command
    return [*command, name, str(value)]


def longer(command, steps):
    """The command with so many steps at least; a capture begins again after its last."""
    command = list(map(str, command))
    now = int(command[command.index("--steps") + 1]) if "--steps" in command else 0
    command = with_option(command, "--steps", max(steps, now))
    is_capture = command[1].endswith(".h5")
    return command + ["--cycle"] * (is_capture and "--cycle" not in command)


def answered(run, lane, folder):
    """The program's own answer on the lane of a run."""
    done = subprocess.run([runner.binary(), "recommend", run, "--fix", lane, "--json", "-o", FIXED],
                          capture_output=True, text=True, cwd=folder)
    if done.returncode not in ANSWERS:
        raise runner.Refused(f"exit code {done.returncode}: {done.stderr.strip()[-600:]}")
    return json.loads(done.stdout)


def run_again(command, chosen, folder):
    """The fix as a user would apply it: its policy is a lane of an ordinary replay."""
    command = with_option(command, "--lanes", f"fp32,{FIXED}")
    is_capture = command[1].endswith(".h5")
    for edit in chosen["edits"]:
        if edit.get("rewrites"):
            command += ["--rewrite", ",".join(edit["rewrites"])]
        for name, value in edit.get("changes", {}).items():
            command += (["--change", f"{name}={value}"] if is_capture else
                        ["--clip-norm", value] if name == "clip_norm" else ["--optimizer-args", f"{name}={value}"])
    runner.lockstep(folder, *command, *runner.CHEAP, "-o", "again.h5")
    return folder / "again.h5"


def outcome_of(case, command, lane, folder, fires=None):
    """Finds a fix for the lane of a replay, applies it, and says what became of the fault.
    fires: Raw -> '' where the planted fault is there, by the counts of the run file."""
    begin = time.time()
    command = longer(command, STEPS_OF.get(case.get("name"), STEPS))
    runner.lockstep(folder, *command, *runner.CHEAP, "-o", "before.h5")
    found = answered("before.h5", lane, folder)
    chosen = found["tried"][found["fix"]] if "fix" in found else None
    before, after = found["before"], chosen or found["before"]
    outcome = {**case, "lane": lane, "answer": found["answer"], "grade": chosen["grade"] if chosen else "no",
               "finding": found["finding"], "kind": (before["findings"] or ["none"])[0],
               "fix": "; ".join(edit["words"] for edit in chosen["edits"]) if chosen else "",
               "changes_run": bool(chosen) and any(e.get("changes") or e.get("rewrites") for e in chosen["edits"]),
               "loss_before": before["loss"], "loss_after": after["loss"], "loss_fp32": after["reference_loss"],
               "gap": after["gap"], "tolerance": after["tolerance"], "fall": after["reference_fall"],
               "verdict": after["verdict"], "tried": len(found["tried"]), "untested": found["untested"],
               "gone": False, "within": False}
    if chosen:
        run = run_again(command, chosen, folder)
        first = runner.report(folder / "before.h5", lane)["findings"][0]
        where = lambda finding: (finding["kind"], (finding.get("site") or {}).get("layer"))
        again = runner.report(run, FIXED)
        reported = where(first) in map(where, again["findings"])
        planted = fires is not None and fires(runner.Raw(run, FIXED)) == ""
        outcome["gone"] = not reported and not planted
        outcome["within"] = again["gap"] is not None and again["gap"] <= outcome["tolerance"]
        outcome["same"] = again["loss"] == outcome["loss_after"]
    outcome["seconds"] = round(time.time() - begin, 1)
    return outcome


def one(case):
    """The outcome of a case as a dictionary; a case that could not be run says so."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fixes-"))
    try:
        if "seed" in case:
            plant, run, _ = faults.planted(case["seed"], folder)
            case = {**case, "name": plant.model, "planted": plant.kind, "about": plant.about}
            return outcome_of(case, plant.command, plant.lane, run.parent, plant.fires)
        command, lane = hand_command(case["name"], case["wanted"], folder)
        return outcome_of(case, command, lane, folder)
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
        keys = ("seed", "name", "planted", "about", "lane", "answer", "grade", "gone", "within", "same", "finding", "fix",
                "loss_before", "loss_after", "loss_fp32", "gap", "tolerance", "verdict", "tried", "seconds", "error")
        print(" | ".join(f"{key} {outcome[key]:.4g}" if isinstance(outcome.get(key), float) else f"{key} {outcome[key]}"
                         for key in keys if key in outcome))


if __name__ == "__main__":
    main()
