"""Mutation test of `lockstep check`: defects planted in a user's PyTorch code are red and found at the right place;
harmless changes of the same code are not red.

Each script is captured once as it is and twelve times with other seeds; the baseline has the limits of both ensembles.
"""

import collections
import json
import linecache
import pathlib
import re
import subprocess
import types

import mutants
import pytest
import torch
from conftest import of_today

SCRIPTS = {
    "text": (mutants.TEXT_MUTANTS, mutants.TEXT_HARMLESS),
    "image": (mutants.IMAGE_MUTANTS, mutants.IMAGE_HARMLESS),
    "mlp": (mutants.MLP_MUTANTS, []),
}
OTHER_SEEDS = range(100, 112)
FEWEST_MUTANTS, FEWEST_HARMLESS = 16, 10


def rows(which):
    return [
        pytest.param(script, change, id=f"{script}, {change.name}")
        for script, tables in SCRIPTS.items()
        for change in tables[which]
    ]


def text_of(script, change):
    text = (pathlib.Path(__file__).parent / f"{script}_loop.py").read_text()
    for old, new in change.edits:
        assert text.count(old) == 1, f"{change.name}: {old!r} is in the script {text.count(old)} times"
        text = text.replace(old, new)
    return text


def lines_to_name(script, change):
    """The lines of the changed script that are new, or that change.line matches."""
    old = collections.Counter(text_of(script, mutants.Change("as it is", [])).splitlines())
    return [
        number
        for number, line in enumerate(text_of(script, change).splitlines(), 1)
        if line not in old or (change.line and re.search(change.line, line))
    ]


def capture(folder, script, change, path):
    """Runs the changed script, which writes the capture."""
    folder.mkdir(exist_ok=True)
    source = folder / f"{script}_loop.py"
    source.write_text(text_of(script, change))
    linecache.checkcache()
    module = types.ModuleType(f"{script}_loop")
    threads, onednn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    try:
        torch.set_num_threads(change.threads)
        torch.backends.mkldnn.enabled = change.onednn
        exec(compile(source.read_text(), str(source), "exec"), module.__dict__)
        module.train(str(path), **change.train)
    finally:
        torch.set_num_threads(threads)
        torch.backends.mkldnn.enabled = onednn


@pytest.fixture(scope="session")
def baselines(lockstep, tmp_path_factory):
    """script -> path of the baseline; recorded when it is first asked for."""
    folder, done = tmp_path_factory.mktemp("baselines"), {}

    def baseline(script):
        if script not in done:
            recorded, path = folder / f"{script}.lscap.h5", folder / f"{script}.json"
            capture(folder / "here", script, mutants.Change("as it is", []), recorded)
            others = []
            for seed in OTHER_SEEDS:
                others.append(folder / f"{script}.{seed}.lscap.h5")
                capture(folder / "here", script, mutants.Change("another seed", [], train={"seed": seed}), others[-1])
            lockstep(
                "baseline", "record", recorded, "--other-captures", ",".join(map(str, others)), "-o", path, "--quiet"
            )
            done[script] = path
        return done[script]

    return baseline


def marked_line(sarif):
    """Of the first result; None: it marks none."""
    result = json.loads(sarif.read_text())["runs"][0]["results"][0]
    places = [place["physicalLocation"]["region"]["startLine"] for place in result.get("locations", [])]
    return places[0] if places else None


def check(binary_dir, capture_path, baseline, *options):
    """The exit code, the verdict's first sentence, and all of the text."""
    done = subprocess.run(
        [binary_dir / "lockstep", "check", capture_path, "--baseline", baseline, *options],
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1, 3), done.stderr
    verdict = re.search(r"^[A-Z ]+: .*?(?=\n\n|\Z)", done.stdout, re.M | re.S)
    return done.returncode, " ".join(verdict.group(0).split()), done.stdout


@pytest.mark.filterwarnings("ignore:lockstep_capture")
@pytest.mark.parametrize("script, change", of_today(rows(0)))
def test_mutant_is_red(binary_dir, baselines, tmp_path, script, change):
    baseline = baselines(script)
    capture(tmp_path / "here", script, change, tmp_path / "mutant.lscap.h5")
    code, first, text = check(binary_dir, tmp_path / "mutant.lscap.h5", baseline, "--sarif", tmp_path / "mutant.sarif")
    assert code == 1, text
    assert re.search(change.place, first), f"wanted: {change.place}\n{text}"
    marked, wanted = marked_line(tmp_path / "mutant.sarif"), lines_to_name(script, change)
    assert marked in wanted, f"{marked} is marked, wanted: {wanted}\n{text}"


@pytest.mark.parametrize("script, change", of_today(rows(1)))
def test_harmless_change_is_not_red(binary_dir, baselines, tmp_path, script, change):
    baseline = baselines(script)
    capture(tmp_path / "elsewhere", script, change, tmp_path / "harmless.lscap.h5")
    code, _, text = check(binary_dir, tmp_path / "harmless.lscap.h5", baseline)
    assert code == 0, text


def test_enough_changes_are_tried():
    assert len(rows(0)) >= FEWEST_MUTANTS and len(rows(1)) >= FEWEST_HARMLESS
    assert len({case.id for case in rows(0) + rows(1)}) == len(rows(0) + rows(1)), "names are unique"
