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
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import planted_faults as faults
import planted_runner as runner

sys.path.append(str(runner.SOURCE / "tests" / "integration" / "support"))
import hand_planted as hand

FIRST_SEED, COUNT = 0, 50
ANSWERS = {0, 3}  # exit codes: fixed or nothing to fix, not fixed
FIXED = "fix.toml"
NOT_IN_COUNTS = {"beta2 is 1"}  # no count of a run file shows the fault
# FP32 must learn, or the fall of its loss tolerates nothing. Built-in models cost more, three of them too much.
STEPS_OF_CAPTURE, STEPS_OF_MODEL = 120, 60
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
    done = subprocess.run(
        [runner.binary(), "recommend", run, "--fix", lane, "--json", "-o", FIXED],
        capture_output=True,
        text=True,
        cwd=folder,
    )
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
            command += (
                ["--change", f"{name}={value}"]
                if is_capture
                else ["--clip-norm", value]
                if name == "clip_norm"
                else ["--optimizer-args", f"{name}={value}"]
            )
    runner.lockstep(folder, *command, *runner.CHEAP, "-o", "again.h5")
    return folder / "again.h5"


def outcome_of(case, command, lane, folder, fires=None):
    """Finds a fix for the lane of a replay, applies it, and says whether the fault is gone.
    fires: Raw -> '' where the planted fault is there, by the counts of the run file."""
    begin, short = time.time(), command
    steps = STEPS_OF_CAPTURE if str(command[1]).endswith(".h5") else STEPS_OF_MODEL
    command = longer(command, STEPS_OF.get(case.get("name"), steps))
    runner.lockstep(folder, *command, *runner.CHEAP, "-o", "before.h5")
    found = answered("before.h5", lane, folder)
    if found["answer"] == "nothing_wrong":  # a fault of one batch, which many others outweigh
        command = short
        runner.lockstep(folder, *command, *runner.CHEAP, "-o", "before.h5", "--overwrite")
        found = answered("before.h5", lane, folder)
    chosen = found["tried"][found["fix"]] if "fix" in found else None
    before, after = found["before"], chosen or found["before"]
    outcome = {
        **case,
        "lane": lane,
        "answer": found["answer"],
        "grade": chosen["grade"] if chosen else "no",
        "finding": found["finding"],
        "kind": (before["findings"] or ["none"])[0],
        "fix": "; ".join(edit["words"] for edit in chosen["edits"]) if chosen else "",
        "changes_run": bool(chosen) and any(e.get("changes") or e.get("rewrites") for e in chosen["edits"]),
        "loss_before": before["loss"],
        "loss_after": after["loss"],
        "loss_fp32": after["reference_loss"],
        "gap": after["gap"],
        "tolerance": after["tolerance"],
        "fall": after["reference_fall"],
        "verdict": after["verdict"],
        "tried": len(found["tried"]),
        "untested": found["untested"],
        "gone": False,
        "within": False,
    }
    if chosen:
        run = run_again(command, chosen, folder)
        first = runner.report(folder / "before.h5", lane)["findings"][0]
        where = lambda finding: (finding["kind"], (finding.get("site") or {}).get("layer"))
        again = runner.report(run, FIXED)
        reported = where(first) in map(where, again["findings"])
        planted = fires is not None and case["planted"] not in NOT_IN_COUNTS and fires(runner.Raw(run, FIXED)) == ""
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
    for path in sorted(
        [*here.glob("planted_*.py"), here / "fixes.py", pathlib.Path(hand.__file__), *capture.rglob("*.py")]
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def run(cases, kept=None, workers=2):
    """The outcomes of the cases, in order. `kept`: a folder for what earlier calls found."""
    key, found, todo = sources(), {}, []
    path_of = lambda case: (
        pathlib.Path(kept) / ("fix-" + hashlib.sha256(json.dumps(case).encode()).hexdigest()[:16] + ".json")
    )
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


def is_untested(outcome):
    """Nothing could be tried: what it takes is no change of policy, options or graph."""
    return outcome["answer"] == "nothing_helped" and outcome["tried"] == 0


def is_fixed(outcome):
    return outcome["gone"] and outcome["within"]


def in_noise(outcome):
    return outcome["gone"] and not outcome["within"] and outcome["grade"] == "noise"


def escaped(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def digits(number):
    return "NaN" if number is None else f"{number:.4g}"


def counts(outcomes, title):
    ran = [o for o in outcomes if "error" not in o]
    rows = [
        f"- {title}: fault gone and loss within the tolerance in **{sum(map(is_fixed, ran))} of {len(ran)}**; fault gone in "
        f"{sum(o['gone'] for o in ran)}; of these, loss within this run's noise only: {sum(map(in_noise, ran))}; "
        f"untested: {sum(map(is_untested, ran))}; not fixed: {sum(not o['gone'] and not is_untested(o) for o in ran)}"
    ]
    learned = sum(o["verdict"] != "too short" for o in ran)
    rows.append(
        f"  - FP32 had learned by the end in {learned} of {len(ran)}: elsewhere the loss says little. Fixes of several "
        f"edits: {sum(';' in o['fix'] for o in ran)}; that change the training itself: {sum(o['changes_run'] for o in ran)}"
    )
    return rows


def table(outcomes):
    rows = [
        "| network | planted | lane | named | fix found | loss before | after | FP32 | gap | tolerance | |",
        "|---" * 11 + "|",
    ]
    for o in outcomes:
        if "error" in o:
            continue
        planted = f"{o['planted']}: {o['about']}" if "planted" in o else o["name"]
        network = f"seed {o['seed']}, {o['name']}" if "seed" in o else "by hand"
        word = (
            "fixed"
            if is_fixed(o)
            else "fixed, within noise"
            if in_noise(o)
            else "untested"
            if is_untested(o)
            else "fault gone, loss not"
            if o["gone"]
            else "not fixed"
        )
        rows.append(
            "| "
            + " | ".join(
                map(
                    escaped,
                    [
                        network,
                        planted,
                        o["lane"],
                        o["kind"],
                        o["fix"] or "-",
                        digits(o["loss_before"]),
                        digits(o["loss_after"]),
                        digits(o["loss_fp32"]),
                        digits(o["gap"]),
                        digits(o["tolerance"]),
                        word,
                    ],
                )
            )
            + " |"
        )
    return rows


def page(by_hand, generated):
    rows = [
        "# Fixes of findings: the remedy that `recommend --fix` finds, applied",
        "",
        "Written by `./dev study fixes`. In every lane in which a planted fault fires, `lockstep recommend RUN --fix LANE` runs the "
        "remedies of its gravest finding.",
        "The policy that it writes is then a lane of an ordinary replay. The fault is gone if that "
        "lane's report has no finding of the kind at the layer, and, of generated",
        "networks, if the counts of the run file do not show "
        "the planted fault either. The loss is compared with FP32's of the same run: tolerated are 2 % of the fall of",
        "FP32's loss, and "
        "never less than what one ulp does (`analysis/search/proof.h`). Captures take "
        f"{STEPS_OF_CAPTURE} steps, over and over; built-in models {STEPS_OF_MODEL} or as many as they can.",
        "",
        "Developed on the networks planted by hand and on seeds from 1000 up, with one exception: seed 39 was not fixed when these "
        "seeds were first run. It showed a mistake",
        "(a fix of a lesser finding was accepted while the gravest stood) and a missing "
        "remedy (a format rule of the policy wins over a layer's), mended on seeds 2001 and 2005.",
        "",
        *counts(by_hand, "planted by hand"),
        *counts(generated, "generated"),
        "",
        "## Planted by hand",
        "",
        *table(by_hand),
        "",
        "## Generated",
        "",
        "`python tests/integration/study/planted_faults.py --seed N` repeats a network.",
        "",
        *table(generated),
    ]
    bad = [o for o in by_hand + generated if "error" not in o and not is_fixed(o)]
    rows += ["", "## Not fixed, untested, or only within noise", ""]
    rows += [
        f"- {escaped(o['name'])}{f' (seed {seed})' if (seed := o.get('seed')) is not None else ''}, {o['lane']}: {escaped(o['finding'])}. "
        f"Tried: {o['tried']}; untested: {', '.join(o['untested']) or 'none'}; gap {digits(o['gap'])}, verdict {o['verdict']}"
        for o in bad
    ] or ["None."]
    failed = [o for o in by_hand + generated if "error" in o]
    if failed:
        rows += ["", "## Cases that could not be run", ""]
        rows += [f"- {o.get('seed', o.get('name'))}: {escaped(o['error'])[:800]}" for o in failed]
    return "\n".join(rows) + "\n"


def main():
    kept = pathlib.Path(runner.binary()).parent / "study"
    outcomes = run(cases_of(sys.argv[1]), kept)
    hands = [o for o in outcomes if "seed" not in o]
    print(page(hands, [o for o in outcomes if "seed" in o]))


if __name__ == "__main__":
    main()
