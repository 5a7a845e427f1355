"""Kills at random moments, with and without a second program on the same file: what must hold afterwards.

Every case starts a program, kills it (SIGKILL) at a random moment, in a third of the cases while a second program
wants the same file, and then lets it end. It holds that
- every step that the progress snapshot had shown is still there, and `lockstep verify` finds the file whole;
- a second program either leaves with exit code 2 and a message, or is the only one left;
- the end result has the bits of one that was never stopped.
For every tenth fresh run two programs start together on one file and are not killed: exactly one of them records it.
"""

import dataclasses
import json
import pathlib
import random
import shutil
import subprocess
import time

import h5py
from conftest import assert_same_run

SMALL = ["--data", "synthetic:200", "--steps", "20", "--batch", "8", "--seed", "3"]
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
OPERATIONS = ("fresh run", "resume", "run of a capture", "recommend", "baseline record")
BUSY = "another program is writing it"
# What a second program may say when it came too late for the lock: the file is there.
TOLERATED = (BUSY, "exists")


@dataclasses.dataclass
class Counts:
    kills: int = 0
    inside: int = 0  # the program had something to lose: it was not yet, or no longer, ...
    contested: int = 0  # a second program was started while the first ran
    refused: int = 0  # of these, how many second programs left with a message
    resumed: int = 0


class Campaign:
    def __init__(self, binary_dir, folder, capture=None, seed=1):
        self.program = str(pathlib.Path(binary_dir) / "lockstep")
        self.folder = pathlib.Path(folder)
        self.random = random.Random(seed)
        self.capture = capture
        self.counts = {name: Counts() for name in OPERATIONS}
        self.races = 0
        self._whole, self._seconds = {}, {}

    def run(self, *args, cwd=None):
        done = subprocess.run([self.program, *map(str, args)], capture_output=True, text=True, cwd=cwd)
        # 3: `recommend` has an answer, if none that it would give to a user: these runs are too short to learn
        assert done.returncode == 0 or (done.returncode == 3 and args[0] == "recommend"), (
            f"{args}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done

    def start(self, *args, cwd):
        return subprocess.Popen(
            [self.program, *map(str, args)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=cwd
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

    def race(self, number):
        """Two programs on one file, both until they end."""
        whole, _ = self.whole("fresh run")
        folder = self.folder / f"race-{number}"
        folder.mkdir()
        args = self.arguments("fresh run", folder)
        both = [self.start(*args, cwd=folder) for _ in range(2)]
        ends = [(process.communicate(timeout=120)[1], process.returncode) for process in both]
        assert sorted(code for _, code in ends) == [0, 2], ends
        assert all(any(text in said for text in TOLERATED) for said, code in ends if code == 2), ends
        self.run("verify", folder / "run.h5")
        assert assert_same_run(whole / "run.h5", folder / "run.h5") > 50
        self.races += 1
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
        rows += ["", f"Races of two fresh runs to the end: {self.races}; exactly one recorded its run in each."]
        return "\n".join(rows) + "\n"


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


def run_campaign(campaign, kills):
    for number in range(kills):
        campaign.kill_once(OPERATIONS[number % len(OPERATIONS)], number)
        if number % (10 * len(OPERATIONS)) == 0:
            campaign.race(number)
