"""Damage by chance to every kind of file that a program of Lockstep reads back: what the readers then say.

A reading changes a file (a flipped bit, a cut, a page of zeros, two pages swapped), lets one reader read it, and compares
exit code and output with those of the whole file:
- same: the reader does not read what is damaged, or makes it anew, as `recommend` its kept runs;
- named: refused, with a message that names the part of the file;
- refused: refused with a message that names the file alone, as where HDF5 cannot open it;
- noted: another answer, and a note that the file is not as it was written (baselines alone: merged ones are read);
- silent: a different answer with no error;
- crash: the reader ended in any other way, or not at all.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess
import traceback
import urllib.request
import warnings
from collections import Counter
from collections.abc import Callable

import h5py
from conftest import datasets
from lockstep_capture.read_run import RunFileError, read_run
from unsealed import shorten

MODEL = ["mlp", "--size", "hidden1=16,hidden2=8", "--data", "synthetic:200", "--batch", "8", "--seed", "3"]
STEPS = 12
LANES = "fp32,pure-fp16,autocast"
PAGE, SMALL_PAGE = 4096, 64  # the small one where a file has but a few of the others
STRUCTURE = 40_000  # bytes at the front of a run file that hold most of its structure
SECONDS = 60  # of processor time that a reader may take
WAITED = 900  # seconds, until a reader counts as stuck: the machine may be busy
OUTCOMES = ("same", "named", "refused", "noted", "silent", "crash")
HARMFUL = ("silent", "crash")
PART = re.compile(
    r"\b(lanes|seeds|sites|checksums|eval|tensors)/|\b(steps_complete|description|options|graph|products|lane|step|row|"
    r"snapshot|checkpoint|line|gate)\b"
)
NOTE = re.compile(r"merged or edited by hand|without a checksum")


@dataclasses.dataclass(frozen=True)
class Answer:
    code: int
    output: str
    said: str = ""  # on standard error, or the text of an exception


@dataclasses.dataclass(frozen=True)
class Reader:
    kind: str  # of the file
    name: str
    file: str  # in the kind's folder, a pattern: one of these files is damaged
    read: Callable[[pathlib.Path], Answer]  # in such a folder
    share: int = 1  # of the readings
    refusals: tuple[int, ...] = (2,)  # exit codes


# ---- damage


def _flip(content: bytearray, at: int, dice: random.Random) -> None:
    content[at] ^= 1 << dice.randrange(8)


def _flip_bit(content: bytearray, dice: random.Random) -> None:
    _flip(content, dice.randrange(len(content)), dice)


def _flip_in_structure(content: bytearray, dice: random.Random) -> None:
    _flip(content, dice.randrange(min(len(content), STRUCTURE)), dice)


def _cut(content: bytearray, dice: random.Random) -> None:
    del content[dice.randrange(len(content)) :]


def _pages(content: bytearray, count: int, dice: random.Random) -> list[slice]:
    size = PAGE if len(content) > 4 * PAGE else SMALL_PAGE
    pages = range(len(content) // size)
    return [slice(page * size, (page + 1) * size) for page in dice.sample(pages, count)]


def _zero_page(content: bytearray, dice: random.Random) -> None:
    (page,) = _pages(content, 1, dice)
    content[page] = bytes(page.stop - page.start)


def _swap_pages(content: bytearray, dice: random.Random) -> None:
    one, other = _pages(content, 2, dice)
    content[one], content[other] = content[other], content[one]


DAMAGES = {
    "a flipped bit": _flip_bit,
    "a flipped bit at the front": _flip_in_structure,
    "a cut": _cut,
    "a page of zeros": _zero_page,
    "two pages swapped": _swap_pages,
}


def damaged(whole: bytes, how: str, dice: random.Random) -> bytes:
    """Other bytes than those of the whole file."""
    while True:
        content = bytearray(whole)
        DAMAGES[how](content, dice)
        if content != whole:
            return bytes(content)


# ---- readers


def _limit_time() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))


def in_child(work: Callable[[], Answer]) -> Answer:
    """In a process of its own: a library may crash."""
    end, start = os.pipe()
    child = os.fork()
    if child == 0:
        _limit_time()
        signal.alarm(WAITED)
        try:
            answer = work()
        except BaseException:
            answer = Answer(70, "", traceback.format_exc())
        with os.fdopen(start, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(start)
    with os.fdopen(end, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(text) if text else Answer(-os.WTERMSIG(status) or 70, "", "the process ended")


def digest(*values) -> str:
    return hashlib.sha256(pickle.dumps(values)).hexdigest()


def _tables(path: pathlib.Path) -> Answer:
    said = []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            run = read_run(path)
            of_lanes = []
            for seed in run.seeds:
                run = run if seed == run.seed else read_run(path, seed=seed)
                of_lanes += [run.attributes, run.graph, run.options, run.environment, run.policies]
                of_lanes += [run.sites, run.lanes, run.steps, run.evaluations, run.products]
                for lane in run.lanes.index:
                    of_lanes += [run.statistics(lane), run.histograms(lane), run.histograms(lane, blocks=True)]
                    of_lanes += [run.sums(lane), run.gradient_norms(lane), run.watched(lane), run.device_products(lane)]
            answer = Answer(0, digest(*of_lanes))
        except RunFileError as error:
            answer = Answer(2, "", str(error))
        said = [str(warning.message) for warning in found]
    return dataclasses.replace(answer, said="\n".join([answer.said, *said]))


def _contents(path: pathlib.Path) -> Answer:
    """Of a run file, without times."""
    changing = ("seconds", "bytes_up", "bytes_kept")
    parts = {name: data for name, data in datasets(path).items() if name.rsplit("/", 1)[-1] not in changing}
    return Answer(0, digest(*((name, data.dtype.str, data.tolist()) for name, data in sorted(parts.items()))))


# Numbers that say how much of the work was done anew.
WORK = re.compile(r'"(read_again|replays|seconds)": *[\d.e+-]+')


class Readers:
    """The files and their readers, as `./dev study damage` and the tests use them."""

    def __init__(self, binary_dir, folder, capture):
        self.program = str(pathlib.Path(binary_dir) / "lockstep")
        self.folder = pathlib.Path(folder)
        self.work = self.folder / "reading"  # the same path for all, since messages and files name it
        self.whole: dict[str, pathlib.Path] = {}
        self._make(capture)
        self.all = self._list()

    def run(self, *args, cwd) -> Answer:
        try:
            done = subprocess.run(
                [self.program, *map(str, args)],
                capture_output=True,
                text=True,
                errors="replace",
                cwd=cwd,
                timeout=WAITED,
                preexec_fn=_limit_time,
            )
        except subprocess.TimeoutExpired:
            return Answer(-int(signal.SIGALRM), "", f"took more than {WAITED} s")
        return Answer(done.returncode, done.stdout, done.stderr)

    def _made(self, kind: str, *commands, copied=()) -> None:
        """The whole files of a kind, made where they are read."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        for path in copied:
            shutil.copy(path, self.work)
        for command in commands:
            done = self.run(*command, cwd=self.work)
            assert done.code in (0, 3), f"{command}: {done}"  # 3: an answer of `recommend` from few steps
        self.whole[kind] = self.folder / f"whole-{len(self.whole)}"
        shutil.copytree(self.work, self.whole[kind])

    def _make(self, capture) -> None:
        replay = ["replay", *MODEL, "--steps", STEPS, "--lanes", LANES, "--threads", "1", "--quiet"]
        self._made(
            "run file",
            [*replay, "--sums-every", 5, "--eval-every", 4, "-o", "run.h5"],
            [*replay, "--sums-every", 5, "--eval-every", 4, "-o", "good.h5"],
        )
        (self.whole["run file"] / "run.h5.progress.json").unlink()
        self._made("run file of two seeds", [*replay, "--seeds", 2, "-o", "run.h5"])
        self._made("unfinished run", [*replay, "--checkpoint-every", 2, "-o", "run.h5"])
        self.whole["checkpoint"] = self.whole["unfinished run"]
        self.whole["progress snapshot"] = self.whole["unfinished run"]
        with h5py.File(self.whole["unfinished run"] / "run.h5", "r+") as file:
            shorten(file, STEPS - 1)
        lanes = ["--lanes", "fp32,torch-autocast-fp16", "--threads", "1"]
        self._made(
            "capture",
            ["replay", "net.h5", *lanes, "-o", "run.h5", "--quiet"],
            ["verify", "net.h5"],  # after the replay: the run has no copy of its result
            copied=[capture],
        )
        self.whole["verification of a capture"] = self.whole["capture"]
        record = ["baseline", "record", *MODEL, "--steps", 5, "--members", 2, "--quiet", "-o"]
        self._made("baseline", [*record, "base.json"], [*record, "good.base"])
        self._made("kept runs of recommend", ["recommend", *MODEL, "--steps", STEPS, "--json"])
        self._made(
            "proposal",
            [*record, "base.json"],
            ["baseline", "propose", "base.json", "--quiet"],
        )

    # ---- one function for each reader

    def _reading(self, *command) -> Callable[[pathlib.Path], Answer]:
        return lambda folder: self.run(*command, cwd=folder)

    def _searched(self, *command) -> Callable[[pathlib.Path], Answer]:
        def read(folder):
            answer = self.run(*command, cwd=folder)
            return dataclasses.replace(answer, output=WORK.sub("", answer.output))

        return read

    def _written(self, *command, result="run.h5") -> Callable[[pathlib.Path], Answer]:
        """The run that the command writes is its output."""

        def read(folder):
            answer = self.run(*command, cwd=folder)
            return answer if answer.code != 0 else in_child(lambda: _contents(folder / result))

        return read

    def _approved(self, folder: pathlib.Path) -> Answer:
        answer = self.run("baseline", "approve", "base.json", "--reason", "tried", cwd=folder)
        if answer.code != 0:
            return answer
        baseline = json.loads((folder / "base.json").read_text())
        for key in ("checksum", "history"):  # times
            del baseline[key]
        return dataclasses.replace(answer, output=json.dumps(baseline))

    def _live(self, folder: pathlib.Path) -> Answer:
        live = subprocess.Popen(
            [self.program, "report", "--live", "run.h5"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder
        )
        try:
            line = live.stdout.readline().decode()
            port = re.search(r":(\d+)/", line)
            if port is None:
                said = live.stderr.read().decode(errors="replace")
                return Answer(live.wait(WAITED), line, said)
            with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/snapshot.json", timeout=WAITED) as answer:
                shown = answer.read().decode()
            sentence = json.loads(shown)["sentence"]
            return Answer(2 if "is damaged" in sentence else 0, shown, sentence)
        finally:
            live.kill()
            live.communicate()

    def _list(self) -> list[Reader]:
        report, check = ["report", "run.h5"], ["check", "run.h5", "--exact", "--baseline", "good.h5"]
        verdict = (1, 2)  # of `verify RUN`: 1 says that the file is damaged
        of_run = [
            ("report", self._reading(*report), 3),
            ("report --format json", self._reading(*report, "--format", "json"), 6),
            ("report --format html", self._reading(*report, "--format", "html"), 3),
            ("report --format markdown", self._reading(*report, "--format", "markdown"), 1),
            ("report --table", self._reading(*report, "--table", "lanes"), 1),
            ("report RUN RUN2", self._reading("report", "good.h5", "run.h5", "--format", "json"), 2),
            ("report --live", self._live, 1),
            ("recommend RUN", self._searched("recommend", "run.h5", "--json"), 3),
            ("check RUN --exact", self._reading(*check), 3),
            ("check --baseline RUN", self._reading("check", "good.h5", "--exact", "--baseline", "run.h5"), 2),
            ("check RUN --baseline RUN", self._reading("check", "run.h5", "--baseline", "good.h5", "--json", "-"), 1),
        ]
        resume, net = ["replay", "--resume", "run.h5", "--quiet"], ["replay", "net.h5", "--lanes", "fp32", "--quiet"]
        base = ["check", "mlp", "--baseline", "base.json", "--json", "-"]
        kept = ["recommend", *MODEL, "--steps", STEPS, "--json"]
        tables = lambda folder: in_child(lambda: _tables(folder / "run.h5"))
        return [
            *(Reader("run file", name, "run.h5", read, share) for name, read, share in of_run),
            Reader("run file", "verify", "run.h5", self._reading("verify", "run.h5"), 2, verdict),
            Reader("run file", "read_run", "run.h5", tables, 8),
            Reader(
                "run file of two seeds", "report --format json", "run.h5", self._reading(*report, "--format", "json"), 2
            ),
            Reader("run file of two seeds", "report --seed 4", "run.h5", self._reading(*report, "--seed", 4), 1),
            Reader("run file of two seeds", "verify", "run.h5", self._reading("verify", "run.h5"), 1, verdict),
            Reader("run file of two seeds", "read_run", "run.h5", tables, 2),
            Reader("unfinished run", "report --format json", "run.h5", self._reading(*report, "--format", "json"), 2),
            Reader("unfinished run", "replay --resume", "run.h5", self._written(*resume), 3),
            Reader("unfinished run", "verify", "run.h5", self._reading("verify", "run.h5"), 1, verdict),
            Reader("unfinished run", "read_run", "run.h5", tables, 2),
            Reader("checkpoint", "replay --resume", "run.h5.state*", self._written(*resume), 3),
            Reader("checkpoint", "verify", "run.h5.state*", self._reading("verify", "run.h5"), 1, verdict),
            Reader(
                "checkpoint",
                "replay --start-from",
                "run.h5.state",
                self._written(
                    "replay",
                    *MODEL,
                    "--steps",
                    2,
                    "--start-from",
                    "run.h5.state",
                    "-o",
                    "next.h5",
                    "--quiet",
                    result="next.h5",
                ),
            ),
            Reader("progress snapshot", "report --live", "run.h5.progress.json", self._live, 3),
            Reader("capture", "replay", "net.h5", self._written(*net, "-o", "next.h5", result="next.h5"), 2),
            Reader("capture", "verify", "net.h5", self._reading("verify", "net.h5")),
            Reader("capture", "explain", "net.h5", self._reading("explain", "net.h5", "--policy", "pure-fp16"), 1),
            Reader("capture", "recommend", "net.h5", self._searched("recommend", "net.h5", "--json"), 1),
            Reader("verification of a capture", "report", "net.h5.verify.json", self._reading(*report), 2),
            Reader("baseline", "check MODEL", "base.json", self._reading(*base), 3),
            Reader(
                "baseline",
                "check MODEL --baseline FOLDER",
                "base.json",
                self._reading(*base[:2], "--baseline", ".", "--json", "-"),
            ),
            Reader(
                "baseline", "baseline diff", "base.json", self._reading("baseline", "diff", "good.base", "base.json"), 1
            ),
            Reader("proposal", "baseline approve", "base.json.proposed", self._approved, 1),
            Reader("kept runs of recommend", "recommend", "mlp.recommend/*.h5", self._searched(*kept), 3),
        ]


# ---- the campaign


def outcome_of(reader: Reader, whole: Answer, found: Answer) -> str:
    if found.code not in (0, 1, 2, 3) or re.search("Traceback|internal error|terminate called", found.said):
        return "crash"
    if (found.code, found.output) == (whole.code, whole.output):
        return "same"
    if found.code in reader.refusals:
        return "named" if PART.search(found.said + found.output) else "refused"
    if reader.kind == "baseline" and NOTE.search(found.said + found.output):
        return "noted"
    return "silent"


class Campaign:
    def __init__(self, binary_dir, folder, capture, seed=1, readers=lambda reader: True):
        self.readers = Readers(binary_dir, folder, capture)
        self.random = random.Random(seed)
        self.chosen = [reader for reader in self.readers.all if readers(reader)]
        self.counts = {(reader.kind, reader.name): Counter() for reader in self.chosen}
        self.by_damage = {how: Counter() for how in DAMAGES}
        self.harmful: list[str] = []
        self.expected = {reader: self._read_whole(reader) for reader in self.chosen}

    def _copy(self, reader: Reader) -> pathlib.Path:
        work = self.readers.work
        shutil.rmtree(work, ignore_errors=True)
        return pathlib.Path(shutil.copytree(self.readers.whole[reader.kind], work))

    def _read_whole(self, reader: Reader) -> Answer:
        """What every reading is compared with: the same twice."""
        first, second = (reader.read(self._copy(reader)) for _ in range(2))
        assert first == second, f"{reader.name} of a whole {reader.kind} differs from one time to the next"
        assert first.code in (0, 1, 3), f"{reader.name} of a whole {reader.kind}: {first}"
        return first

    def read_damaged(self, reader: Reader, how: str) -> str:
        folder = self._copy(reader)
        path = self.random.choice(sorted(folder.glob(reader.file)))
        content = damaged(path.read_bytes(), how, self.random)
        path.write_bytes(content)
        found = reader.read(folder)
        outcome = outcome_of(reader, self.expected[reader], found)
        self.counts[reader.kind, reader.name][outcome] += 1
        self.by_damage[how][outcome] += 1
        if outcome in HARMFUL:
            kept = self.readers.folder / f"harmful-{len(self.harmful)}"
            shutil.copytree(self._copy(reader), kept)
            (kept / path.relative_to(folder)).write_bytes(content)
            self.harmful.append(
                f"{outcome}: {reader.kind}, {reader.name}, {how}: {kept}: {found.code} {found.said[-400:]}"
            )
        return outcome

    def run(self, readings: int) -> None:
        shares = [reader.share for reader in self.chosen]
        hows = list(DAMAGES)
        for number in range(readings):
            (reader,) = self.random.choices(self.chosen, shares)
            self.read_damaged(reader, hows[number % len(hows)])

    def table(self) -> str:
        head = "| file | reader | readings | same answer | refused, part named | refused | another answer, noted | silent change | crash |"
        rows = [head, "|---|---|---|---|---|---|---|---|---|"]
        for (kind, name), counts in self.counts.items():
            cells = [counts.total(), *(counts[outcome] for outcome in OUTCOMES)]
            rows.append(f"| {kind} | `{name}` | " + " | ".join(map(str, cells)) + " |")
        total = sum(self.counts.values(), Counter())
        rows.append(
            "| all | | " + " | ".join(map(str, [total.total(), *(total[outcome] for outcome in OUTCOMES)])) + " |"
        )
        rows += ["", "| damage | readings | same answer | refused, part named | refused | noted | silent | crash |"]
        rows.append("|---|---|---|---|---|---|---|---|")
        for how, counts in self.by_damage.items():
            rows.append(f"| {how} | " + " | ".join(map(str, [counts.total(), *(counts[o] for o in OUTCOMES)])) + " |")
        return "\n".join(rows) + "\n"
