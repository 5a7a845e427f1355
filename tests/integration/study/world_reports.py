"""The study of reports from the world: what debug() says about reports of public trackers, rebuilt as small networks.

The rows are in reports/. A report is right when the lane's first finding is of a kind that the row accepts, and the
first three lines of the text name a place that it accepts. A healthy counterpart is right when no lane has a finding of
these kinds; any other finding on it is counted, too. Group A was run while the analysis could still be changed; the
first runs of the other groups, which the grades are of, came afterwards.

    python tests/integration/study/world_reports.py NAME...           runs these reports and prints what is said
    python tests/integration/study/world_reports.py --page            the page of the outcomes that were kept, run or not today
    python tests/integration/study/world_reports.py --today           a short page of the same: what is said now, after the first runs
    python tests/integration/study/world_reports.py --screens FOLDER  what a reader grades: NAME.txt, NAME.healthy.txt and
                                                                      NAME.answer.txt of the outcomes without a grade
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
import zlib

import torch

from reports import attention, images, language, measures, pictures, policies, science, sequences, signals, vision

MODULES = (language, vision, signals, attention, policies, images, science, sequences, pictures, measures)
REPORTS = [report for module in MODULES for report in module.REPORTS]
GROUPS = {
    "A": "run while the analysis could still be changed",
    "B": "rebuilt together with group A, first run after the code",
    "C": "rebuilt after the code, graded by another reader",
    "D": "rebuilt after the first run of group C, graded by another reader",
}
FIRST_LINES = 3
RIGHT_AT_LEAST, REMEDY_AT_LEAST, FALSE_AT_MOST, SECONDS_AT_MOST = 0.9, 0.8, 0.02, 10.0
GRADES = ("right", "partly", "wrong")


@dataclasses.dataclass
class Said:
    """What debug() said. findings: (lane, kind) of each; tried: the sentences about remedies that were run."""

    text: str
    findings: list
    tried: list
    faithful: bool
    seconds: float
    right: bool
    error: str = ""
    commit: str = ""

    def first_lines(self):
        return "\n".join(self.text.splitlines()[:FIRST_LINES])


def run(report, healthy):
    """The outcome of one network."""
    import lockstep_capture  # of this checkout: conftest.py puts it on the path

    torch.manual_seed(zlib.crc32(report.name.encode()))
    setup = report.make(healthy)
    begun = time.monotonic()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            found = lockstep_capture.debug(
                setup.model,
                setup.optimizer,
                setup.batches,
                setup.loss_of,
                lanes=setup.lanes,
                steps=len(setup.batches) // setup.options.get("accumulate", 1),
                cycle=setup.cycle,
                program=program(),
                **setup.options,
            )
    except lockstep_capture.CaptureError as error:
        return Said("", [], [], False, time.monotonic() - begun, False, f"{type(error).__name__}: {error}")
    seconds = time.monotonic() - begun
    findings = [(lane["name"], finding["kind"]) for lane in found.lanes for finding in lane["findings"]]
    tried = [f"{lane['name']}: {lane['tried']}" for lane in found.lanes if "tried" in lane]
    said = Said(found.text, findings, tried, found.faithful, seconds, False)
    said.right = is_right(report, said, healthy)
    return said


def is_right(report, said, healthy):
    if healthy:
        return said.faithful and not [kind for _, kind in said.findings if kind in report.kinds]
    names_place = any(place.lower() in said.first_lines().lower() for place in report.places())
    return bool(said.findings) and said.findings[0][1] in report.kinds and names_place


def is_false(report, healthy):
    """A healthy counterpart of which something wrong is said, unless the reader found it true of PyTorch as well."""
    return not healthy.right and not report.graded_healthy.startswith("true:")


def program():
    return pathlib.Path(os.environ["LOCKSTEP_BINARY_DIR"]) / "lockstep"


def sources():
    """Hash of the program, the capture and the rows: an outcome that was kept counts only under the same."""
    digest = hashlib.sha256(pathlib.Path(program()).read_bytes())
    here = pathlib.Path(__file__).resolve().parent
    for path in sorted(
        [*(here / "reports").glob("*.py"), *(here.parents[2] / "python/lockstep_capture").rglob("*.py")]
    ):
        digest.update(re.sub(rb"\s*graded\w*=.*", b"", path.read_bytes()))  # grades come after the run
    return digest.hexdigest()


def kept(report, healthy):
    """The file of an outcome, next to the program."""
    return program().parent / "study" / f"report-{report.name}{'-healthy' if healthy else ''}.json"


def outcomes_kept():
    """What earlier calls found, whatever the program was; reports of which one half is missing are left out."""
    outcomes = {}
    for report in REPORTS:
        paths = [kept(report, healthy) for healthy in (False, True)]
        if all(path.exists() for path in paths):
            pair = [Said(**json.loads(path.read_text())["said"]) for path in paths]
            for said, healthy in zip(pair, (False, True), strict=True):
                said.right = is_right(report, said, healthy)
            outcomes[report.name] = tuple(pair)
    return outcomes


def commit():
    """The last commit that changed the code which runs."""
    here = pathlib.Path(__file__).resolve().parents[3]
    code = ["src", "emulation", "analysis", "reports", "python"]
    done = subprocess.run(["git", "log", "-1", "--format=%h", "--", *code], cwd=here, capture_output=True, text=True)
    return done.stdout.strip()


def run_all(names=()):
    """{name: (of the report, of its healthy counterpart)}; outcomes are kept next to the program."""
    key, outcomes = sources(), {}
    for report in REPORTS:
        if names and report.name not in names:
            continue
        pair = []
        for healthy in (False, True):
            path = kept(report, healthy)
            path.parent.mkdir(exist_ok=True)
            found = json.loads(path.read_text()) if path.exists() else {"key": ""}
            if found["key"] != key:
                said = dataclasses.replace(run(report, healthy), commit=commit())
                found = {"key": key, "said": dataclasses.asdict(said)}
                path.write_text(json.dumps(found))
            pair.append(Said(**found["said"]))
        outcomes[report.name] = tuple(pair)
    return outcomes


def share(count, of):
    return f"{count} of {of}"


def escaped(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def link(report):
    repository, _, number = report.link.partition("#")
    return f"[{report.link}](https://github.com/{repository}/issues/{number})"


def summary(reports, outcomes):
    """The lines above a group's table."""
    said = [outcomes[report.name][0] for report in reports]
    healthy = [outcomes[report.name][1] for report in reports]
    grades = [report.graded.partition(":")[0] for report in reports]
    count = len(reports)
    commits = sorted({outcome.commit for outcome in (*said, *healthy)})
    rows = [
        f"- run at {', '.join(commits)}; median time of a call: "
        f"{statistics.median(outcome.seconds for outcome in (*said, *healthy)):.1f} s",
        f"- kind and place named in the first three lines: **{share(sum(s.right for s in said), count)}**",
        f"- graded by a reader: right {grades.count('right')}, partly {grades.count('partly')}, wrong "
        f"{grades.count('wrong')}, not yet graded {grades.count('')}",
        f"- a remedy that was run and removes the fault: **{share(sum(removes(s) for s in said), count)}**; said to "
        f"remove the fault, of a finding that is not the report's: {sum(removes_another(s) for s in said)}",
        f"- healthy counterparts with a finding of the report's kinds, or not faithful: "
        f"**{share(sum(not h.right for h in healthy), count)}**, false: "
        f"**{sum(is_false(r, outcomes[r.name][1]) for r in reports)}**; with any finding: "
        f"{share(sum(bool(h.findings) for h in healthy), count)}",
    ]
    return rows


def removes(said):
    """The finding is the report's, and a remedy of it was run with success."""
    return said.right and any("removes the fault" in sentence for sentence in said.tried)


def removes_another(said):
    """The text says that a remedy removes the fault, though the fault is another."""
    return not said.right and any("removes the fault" in sentence for sentence in said.tried)


def of_healthy(report, said):
    if said.error:
        return f"error: {said.error}"
    kinds = sorted({kind for _, kind in said.findings})
    return (", ".join(kinds) or "no finding") + ("" if said.faithful else "; not faithful")


def table(reports, outcomes):
    rows = [
        "| report | field | what the user had | what is said | right | graded | remedy tried | healthy counterpart |",
        "|---" * 8 + "|",
    ]
    for report in reports:
        said, healthy = outcomes[report.name]
        cells = [
            f"{link(report)} `{report.name}`",
            report.field,
            report.had + (f". *Right:* {report.answer}" if report.answer else ""),
            said.error or said.first_lines(),
            "yes" if said.right else "no",
            report.graded or "-",
            " ".join(said.tried) or "-",
            of_healthy(report, healthy) + (f" ({report.graded_healthy})" if report.graded_healthy else ""),
        ]
        rows.append("| " + " | ".join(map(escaped, cells)) + " |")
    return rows


def page(outcomes):
    seconds = [said.seconds for pair in outcomes.values() for said in pair]
    fields = sorted({report.field for report in REPORTS if report.name in outcomes})
    rows = [
        "# Reports from the world",
        "",
        "Written by `./dev study reports`. Reports of public trackers, each rebuilt on synthetic data as a small network "
        "of our own with the numerical property of the",
        "report, and each with a healthy counterpart: the same network without the fault, or in the format that the user "
        "went back to. The right answer was committed",
        "before the first run (`tests/integration/study/reports`). *Right* is computed: the first finding is of a kind "
        "that the row accepts, and the first three lines",
        "name a place that it accepts. *Graded* is a reader's verdict on the first run, written into the rows after it. In groups A "
        "and B the reader also wrote the rows, so it is no independent grade.",
        "`debug()` runs remedies only where the replay took 5 s or less by the clock; on a busy machine it runs fewer.",
        "",
        f"- {len(outcomes)} reports of {len(fields)} fields: {', '.join(fields)}",
        f"- median time of a `debug()` call: {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s "
        f"({len(seconds)} calls)",
        "",
    ]
    for group, about in GROUPS.items():
        reports = [report for report in REPORTS if report.group == group and report.name in outcomes]
        rows += [f"## Group {group}: {about}", ""]
        missing = [report.name for report in REPORTS if report.group == group and report.name not in outcomes]
        rows += [f"Not run: {', '.join(missing)}.", ""] if missing else []
        rows += [*summary(reports, outcomes), "", *table(reports, outcomes), ""] if reports else []
    return "\n".join(rows).rstrip() + "\n"


def page_of_today(outcomes):
    """What the program says now. The first runs, which the grades are of, stay in reports.md."""
    seconds = [said.seconds for pair in outcomes.values() for said in pair]
    rows = [
        "# Reports from the world: today's program",
        "",
        "Written by `python tests/integration/study/world_reports.py --today` from the last runs. The first runs, which "
        "a reader graded, are in [reports.md](reports.md).",
        "The analysis has been changed since with some of these reports in view, so this table is no independent "
        "evidence; *right* is computed as there.",
        "",
        f"- median time of a `debug()` call: {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s "
        f"({len(seconds)} calls)",
        "",
    ]
    for group in GROUPS:
        reports = [report for report in REPORTS if report.group == group and report.name in outcomes]
        if not reports:
            continue
        rows += [f"## Group {group}", "", *[row for row in summary(reports, outcomes) if "graded" not in row], ""]
        rows.append("| report | first run, graded | what is said today | right | remedy tried | healthy counterpart |")
        rows.append("|---" * 6 + "|")
        for report in reports:
            said, healthy = outcomes[report.name]
            cells = [
                f"`{report.name}`",
                report.graded.partition(":")[0] or "-",
                said.error or said.first_lines(),
                "yes" if said.right else "no",
                " ".join(said.tried) or "-",
                of_healthy(report, healthy),
            ]
            rows.append("| " + " | ".join(map(escaped, cells)) + " |")
        rows.append("")
    return "\n".join(rows).rstrip() + "\n"


def write_screens(folder):
    """What a reader grades, who has seen neither the network nor the kinds that its row accepts."""
    outcomes = outcomes_kept()
    for report in REPORTS:
        if report.answer and not report.graded and report.name in outcomes:
            said, healthy = outcomes[report.name]
            answer = f"{report.link} ({report.field})\nthe user had: {report.had}\nright: {report.answer}\n"
            for ending, text in (("", said.error or said.text), (".healthy", healthy.error or healthy.text)):
                pathlib.Path(folder, f"{report.name}{ending}.txt").write_text(text + "\n")
            pathlib.Path(folder, f"{report.name}.answer.txt").write_text(answer)


def main():
    if sys.argv[1:2] == ["--screens"]:
        write_screens(sys.argv[2])
        return
    if sys.argv[1:] in (["--page"], ["--today"]):
        write = page if sys.argv[1] == "--page" else page_of_today
        print(write(outcomes_kept()), end="")
        return
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "python"))
    for name in sys.argv[1:] or [report.name for report in REPORTS]:
        said, healthy = run_all([name])[name]
        report = next(report for report in REPORTS if report.name == name)
        print(f"=== {name}: {'right' if said.right else 'WRONG'} in {said.seconds:.1f} s; {report.places()}")
        print(said.error or said.text)
        print(f"--- healthy: {'right' if healthy.right else 'WRONG'} in {healthy.seconds:.1f} s")
        print(healthy.error or healthy.text)
        print(json.dumps([said.findings, healthy.findings]), flush=True)


if __name__ == "__main__":
    main()
