"""Captures each changed script of check_changes.py, checks it against the unchanged one, and counts the verdicts."""

import collections
import dataclasses
import linecache
import re
import subprocess
import types

import check_changes
import torch
from check_networks import NETWORKS
from lockstep_capture.errors import UnsupportedModelError


@dataclasses.dataclass
class Trial:
    network: str
    change: str
    code: int
    is_placed: bool  # the verdict names a line that may be named
    verdict: str


def capture(folder, network, text, path):
    folder.mkdir(exist_ok=True)
    source = folder / f"{network}.py"
    source.write_text(text)
    linecache.checkcache()
    module = types.ModuleType(network)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        exec(compile(text, str(source), "exec"), module.__dict__)
        module.train(str(path))
    finally:
        torch.set_num_threads(threads)


def lines_to_name(before, after, place):
    """The numbers of lines of `after` that are new, or that `place` matches."""
    old = collections.Counter(before.splitlines())
    return {
        number
        for number, line in enumerate(after.splitlines(), 1)
        if line not in old or (place and re.search(place, line))
    }


def is_placed(network, before, after, change, verdict):
    named = {int(line) for line in re.findall(rf"{network}\.py:(\d+)", verdict)}
    return bool(named & lines_to_name(before, after, change.place))


def checked(binary_dir, changed, baseline):
    """The exit code, and the verdict's first paragraph."""
    done = subprocess.run(
        [binary_dir / "lockstep", "check", changed, "--baseline", baseline], capture_output=True, text=True
    )
    assert done.returncode in (0, 1, 3), done.stderr
    verdict = re.search(r"^[A-Z ]+: .*?(?=\n\n|\Z)", done.stdout, re.M | re.S).group(0)
    return done.returncode, " ".join(verdict.split())


def trials_of(lockstep, binary_dir, folder, network, changes):
    text, here = NETWORKS[network], folder / "here"
    changes = [change for change in changes if change.applies_to(text)]
    if not changes:
        return []
    recorded, changed, baseline = (folder / f"{network}{end}" for end in (".lscap.h5", ".changed.h5", ".json"))
    capture(here, network, text, recorded)
    lockstep("baseline", "record", recorded, "-o", baseline, "--quiet", "--threads", 1)
    trials = []
    for change in changes:
        after = change.text_of(text)
        try:
            capture(here, network, after, changed)
        except UnsupportedModelError as refused:  # the capture itself fails, with file and line
            code, verdict = 1, " ".join(str(refused).split())
        else:
            code, verdict = checked(binary_dir, changed, baseline)
        placed = is_placed(network, text, after, change, verdict)
        trials.append(Trial(network, change.name, code, placed, verdict))
        print(f"{network}, {change.name}: {code} {'placed' if placed else ''} {verdict}", flush=True)
    return trials


TABLES = {
    "harmless, written first": check_changes.REFACTORS_FIRST,
    "harmless, written after the judge": check_changes.REFACTORS_LATER,
    "harmful, written first": check_changes.HARMFUL_FIRST,
    "harmful, written after the judge": check_changes.HARMFUL_LATER,
    "harmless, held back until the next mend": check_changes.REFACTORS_HELD,
    "harmful, held back until the next mend": check_changes.HARMFUL_HELD,
    "harmless, written after the last mend": check_changes.REFACTORS_FRESH,
    "harmful, written after the last mend": check_changes.HARMFUL_FRESH,
}


def all_trials(lockstep, binary_dir, folder, networks, named=""):
    """table -> trials. named: a regular expression of the changes' names."""
    trials = {}
    for name, table in TABLES.items():
        changes = [change for change in table if re.search(named, change.name)]
        here = folder / name.replace(" ", "-").replace(",", "")
        here.mkdir()
        trials[name] = [t for network in networks for t in trials_of(lockstep, binary_dir, here, network, changes)]
    return trials
