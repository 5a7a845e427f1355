"""Kills at random moments, with and without a second program on the same file: what must hold afterwards.

Every case starts a program, kills it (SIGKILL) at a random moment, in a third of the cases while a second program
wants the same file, and then lets it end. It holds that
- every step that the progress snapshot had shown is still there, and `lockstep verify` finds the file whole;
- a second program either leaves with exit code 2 and a message, or is the only one left;
- the end result has the bits of one that was never stopped.
Races: two programs start together on one file, and neither is killed; in a quarter of them one is stopped for a while
(SIGSTOP). Exactly one of them does the work. The other is
refused before its runs start; or it waited, a second at most, until the first had ended, and finds nothing left to do.
"""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time

import h5py
from conftest import assert_same_run

STEPS = 20
SMALL = ["--data", "synthetic:200", "--steps", str(STEPS), "--batch", "8", "--seed", "3"]
REPLAY = [
    "replay",
    "mlp",
    *SMALL,
    "--lanes",
    "fp32,torch-autocast-fp16,pure-fp16",
    "--checkpoint-every",
    "4",
    "--eval-every",
    "5",
    "--threads",
    "1",
]
OPERATIONS = ("fresh run", "resume", "run of a capture", "recommend", "baseline record", "check")
WRITERS = OPERATIONS[:-1]  # a second `check` has a folder of its own
BUSY = "another program is writing it"
# What the second of two says that came when the first had ended: `replay --resume`, `recommend`.
NOTHING_LEFT = re.compile(r"nothing is left to do|(\d+)\s+of\s+\1\s+replays?\s+read\s+from")
LOCK_SECONDS = 1.3  # a little longer than a program waits for a lock
RUN_BEGAN = re.compile(r"run 1/|step +1/")  # lines of progress
# What a second program may say when it came too late for the lock: the file is there.
TOLERATED = (BUSY, "exists")


@dataclasses.dataclass
class Counts:
    kills: int = 0
    inside: int = 0  # the program had something to lose: it was not yet, or no longer, ...
    contested: int = 0  # a second program was started while the first ran
    refused: int = 0  # of these, how many second programs left with a message
    resumed: int = 0


@dataclasses.dataclass
class Races:
    ended: int = 0
    refused: int = 0  # while the first still ran
    exists: int = 0  # refused, because the first had recorded it
    nothing_left: int = 0


class Campaign:
    def __init__(self, binary_dir, folder, capture=None, seed=1):
        self.program = str(pathlib.Path(binary_dir) / "lockstep")
        self.folder = pathlib.Path(folder)
        self.random = random.Random(seed)
        self.capture = capture
        self.counts = {name: Counts() for name in OPERATIONS}
        self.races = {name: Races() for name in WRITERS}
        self._whole, self._seconds = {}, {}

    def run(self, *args, cwd=None):
        done = subprocess.run(
            [self.program, *map(str, args)], capture_output=True, text=True, cwd=cwd, env=environment(cwd)
        )
        # 3: `recommend` has an answer, if none that it would give to a user: these runs are too short to learn
        assert done.returncode == 0 or (done.returncode == 3 and args[0] == "recommend"), (
            f"{args}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done

    def start(self, *args, cwd, stdout=subprocess.DEVNULL):
        return subprocess.Popen(
            [self.program, *map(str, args)],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env=environment(cwd),
        )

    def arguments(self, operation, folder):
        """The command of an operation, whose results lie in `folder`."""
        if operation == "run of a capture":
            return [
                "replay",
                self.capture,
                "--lanes",
                "fp32,torch-autocast-fp16",
                "--checkpoint-every",
                "2",
                "--threads",
                "1",
                "-o",
                folder / "run.h5",
            ]
        if operation == "recommend":
            return ["recommend", "mlp", *SMALL]  # its runs are kept in mlp.recommend
        if operation == "check":
            return ["check", "mlp", "--baseline", self.whole("baseline record")[0] / "baseline.json", "--json", "-"]
        if operation == "baseline record":
            return ["baseline", "record", "mlp", *SMALL, "--members", "2", "-o", folder / "baseline.json"]
        return [*REPLAY, "-o", folder / "run.h5"]

    def whole(self, operation):
        """The folder of an uninterrupted run, made once; and how long it took."""
        if operation not in self._whole:
            folder = self.folder / f"whole-{OPERATIONS.index(operation)}"
            folder.mkdir()
            begin = time.monotonic()
            self.run(*self.arguments(operation, folder), cwd=folder)
            self._seconds[operation] = time.monotonic() - begin
            self._whole[operation] = folder
        return self._whole[operation], self._seconds[operation]

    def stopped(self):
        """The folder of a run that was killed between its first and its last step, made once."""
        folder = self.folder / "stopped"
        _, seconds = self.whole("resume")
        while not folder.exists():
            folder.mkdir()
            self._killed(self.start(*self.arguments("resume", folder), cwd=folder), seconds)
            if not 0 < steps_shown(folder) < STEPS:
                shutil.rmtree(folder)
        return folder

    def race(self, operation, number):
        """Two programs on one file, both until they end."""
        whole, seconds = self.whole(operation)
        folder = self.folder / f"race-{number}"
        if operation == "resume":
            shutil.copytree(self.stopped(), folder)
            args = ["replay", "--resume", folder / "run.h5"]
        else:
            folder.mkdir()
            args = self.arguments(operation, folder)
        both = [self.start(*args, cwd=folder, stdout=subprocess.PIPE) for _ in range(2)]
        if self.random.random() < 1 / 4:  # longer than the other waits for the lock
            time.sleep(self.random.uniform(0, 0.5) * seconds)
            both[0].send_signal(signal.SIGSTOP)
            time.sleep(LOCK_SECONDS)
            both[0].send_signal(signal.SIGCONT)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            said = list(pool.map(lambda process: process.communicate(timeout=120), both))
        ends = [(process.returncode, *texts) for process, texts in zip(both, said, strict=True)]
        late = [end for end in ends if end[0] == 2 or NOTHING_LEFT.search(end[1])]
        assert len(late) == 1, (operation, ends)
        (first,) = (end for end in ends if end is not late[0])
        assert first[0] == 0 or (first[0] == 3 and operation == "recommend"), (operation, ends)
        code, out, error = late[0]
        races = self.races[operation]
        races.ended += 1
        if code == 2:
            assert any(text in error for text in TOLERATED), (operation, ends)
            assert not RUN_BEGAN.search(out + error), (operation, ends)
            races.refused += BUSY in error
            races.exists += BUSY not in error
        else:
            races.nothing_left += 1
        self.end(operation, folder, whole, shown=0)
        shutil.rmtree(folder)

    def kill_once(self, operation, number):
        whole, seconds = self.whole(operation)
        folder = self.folder / f"case-{number}"
        folder.mkdir()
        counts = self.counts[operation]
        if operation == "resume":
            self._killed(self.start(*self.arguments(operation, folder), cwd=folder), seconds)
            if not (folder / "run.h5").exists():
                return shutil.rmtree(folder)
        args = self.arguments(operation, folder)
        if operation == "resume":
            args = ["replay", "--resume", folder / "run.h5"]
        first = self.start(*args, cwd=folder)
        second = None
        if self.random.random() < 1 / 3:
            time.sleep(self.random.uniform(0, 0.3) * seconds)
            extra = ["--overwrite"] if operation == "fresh run" and self.random.random() < 0.5 else []
            if first.poll() is None:
                second = self.start(*args, *extra, cwd=folder)
                counts.contested += 1
        counts.inside += self._killed(first, seconds)
        shown = steps_shown(folder)
        counts.kills += 1
        if second is not None:
            message = second.communicate(timeout=120)[1]
            assert second.returncode in (0, 1, 2, 3), message
            if second.returncode == 2:
                assert any(text in message for text in TOLERATED), message
                counts.refused += 1
            elif "--overwrite" in second.args:
                shown = 0  # it came after the kill, and replaced what was there, as it was told to
        self.end(operation, folder, whole, shown)
        counts.resumed += 1
        shutil.rmtree(folder)

    def _killed(self, process, seconds):
        time.sleep(self.random.uniform(0.02, 1.0) * seconds)
        was_running = process.poll() is None
        process.kill()
        process.communicate()
        return was_running

    def end(self, operation, folder, whole, shown):
        """Lets the operation end, and compares its result with that of one that was never stopped."""
        args = self.arguments(operation, folder)
        if operation == "recommend":
            # up to the line that says how many runs were read
            same = [self.run(*args, cwd=at).stdout.partition("\nRun:")[0] for at in (folder, whole)]
            assert same[0] == same[1]
            return
        if operation == "check":
            same = [self.run(*args, cwd=at).stdout for at in (folder, whole)]
            assert same[0] == same[1]
            assert not list(folder.iterdir()), "runs of a killed check were left"
            return
        if operation == "baseline record":
            if not (folder / "baseline.json").exists():
                self.run(*args, cwd=folder)
            assert content(folder / "baseline.json", folder) == content(whole / "baseline.json", whole)
            return
        run = folder / "run.h5"
        if run.exists():
            with h5py.File(run, "r") as file:
                assert int(file.attrs["steps_complete"]) >= shown, "a complete step was lost"
            self.run("verify", run)
            self.run("replay", "--resume", run)
        else:
            assert shown == 0, "a run with complete steps is gone"
            self.run(*args, cwd=folder)
        self.run("verify", run)
        assert assert_same_run(whole / "run.h5", run) > 50

    def table(self):
        rows = [
            "| operation | kills | while it ran | with a second program | which left with a message | same end |",
            "|---|---|---|---|---|---|",
        ]
        for name, c in self.counts.items():
            rows.append(f"| {name} | {c.kills} | {c.inside} | {c.contested} | {c.refused} | {c.resumed} |")
        rows += [
            "",
            "| two of the same at once | races | one refused while the other ran | refused as the other had ended | found nothing left to do |",
        ]
        rows.append("|---|---|---|---|---|")
        for name, r in self.races.items():
            rows.append(f"| {name} | {r.ended} | {r.refused} | {r.exists} | {r.nothing_left} |")
        return "\n".join(rows) + "\n"


def environment(folder):
    """`check` has its runs in the temporary folder."""
    return os.environ | ({"TMPDIR": str(folder)} if folder else {})


def steps_shown(folder):
    """The complete steps that the snapshot shows: they are in the file before the snapshot is written."""
    try:
        snapshot = json.loads((folder / "run.h5.progress.json").read_text())
    except FileNotFoundError:
        return 0
    return snapshot["steps_done"]


def content(path, folder):
    """A baseline without the times and places that differ between equal runs."""
    record = json.loads(path.read_text().replace(str(folder), "FOLDER"))
    for key in ("checksum", "history", "environment"):  # the checksum is of all that follows it
        record.pop(key, None)
    return record


def run_campaign(campaign, kills, races):
    """races: of every writer."""
    for number in range(kills):
        campaign.kill_once(OPERATIONS[number % len(OPERATIONS)], number)
    for number in range(races * len(WRITERS)):
        campaign.race(WRITERS[number % len(WRITERS)], number)
