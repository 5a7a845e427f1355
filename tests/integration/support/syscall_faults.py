"""Makes a system call on the files of a run fail, one after the other (strace injects it): the data must be whole or
the error said.
"""

import collections
import re
import shutil
import subprocess

from conftest import assert_same_run

ARGS = [
    "replay",
    "mlp",
    "--data",
    "synthetic:200",
    "--steps",
    "4",
    "--batch",
    "8",
    "--lanes",
    "fp32,pure-fp16",
    "--checkpoint-every",
    "2",
    "--seed",
    "3",
    "--threads",
    "1",
]
# What is made to fail, how, and what the message must then say. Calls on paths outside the run's folder are not
# counted: strace takes those that name a path in it, or a descriptor of a file in it.
FAULTS = {
    "openat": ("EACCES", "Permission denied"),
    "pwrite64": ("ENOSPC", "No space left"),
    "write": ("EIO", "Input/output error"),
    "fallocate": ("ENOSPC", "No space left"),
    "fsync": ("EIO", "Input/output error"),
    "rename": ("EACCES", "Permission denied"),
    "ftruncate": ("EIO", "Input/output error"),
    "unlink": ("EACCES", "Permission denied"),
}


def can_inject(folder):
    """Whether this machine has strace and allows it to make calls fail."""
    if shutil.which("strace") is None:
        return False
    command = [
        "strace",
        "-f",
        "-qq",
        "-o",
        str(folder / "log"),
        "-P",
        str(folder / "none"),
        "-e",
        "trace=openat",
        "-e",
        "inject=openat:error=EXDEV",
        "cat",
        str(folder / "none"),
    ]
    subprocess.run(command, capture_output=True)
    return (folder / "log").exists() and "INJECTED" in (folder / "log").read_text()


def _traced(program, folder, fault, *args):
    """Runs the program under strace; only calls on files of the folder are traced and fail."""
    log = folder.parent / "strace.log"
    command = ["strace", "-f", "-qq", "-o", str(log), "-P", str(folder)]
    for name in (
        "run.h5",
        "run.h5.tmp",
        "run.h5.state",
        "run.h5.state.1",
        "run.h5.state.tmp",
        "run.h5.lock",
        "run.h5.progress.json",
        "run.h5.progress.json.tmp",
    ):
        command += ["-P", str(folder / name)]
    command += ["-e", f"trace={','.join(FAULTS)}"] + (["-e", f"inject={fault}"] if fault else [])
    done = subprocess.run([*command, program, *map(str, args)], capture_output=True, text=True, timeout=120)
    return done, log.read_text()


def sweep(lockstep, program, folder, most):
    """Fails at least `most` calls of each kind, evenly spaced (0: every call), one per run. Returns ({call: how many
    there are}, {(call, "whole", "said" or "not struck"): how many faults ended so}). strace counts the calls of each
    process: where a reader in a child process made some of them, the last ones strike nothing.
    """
    whole = folder / "whole.h5"
    lockstep(*ARGS, "-o", whole)
    place = folder / "counted"
    place.mkdir()
    done, log = _traced(program, place, None, *ARGS, "-o", place / "run.h5")
    assert done.returncode == 0, done.stderr
    calls = collections.Counter(re.findall(r"^\d+ +(\w+)\(", log, flags=re.MULTILINE))
    assert calls["pwrite64"] > 50 and calls["fsync"] >= 2 and calls["rename"] >= 4, calls
    outcomes = collections.Counter()
    for call, (error, message) in FAULTS.items():
        stride = 1 if most == 0 else max(1, calls[call] // most)
        for at in range(1, calls[call] + 1, stride):
            place = folder / f"{call}-{at}"
            place.mkdir()
            run = place / "run.h5"
            done, log = _traced(program, place, f"{call}:error={error}:when={at}", *ARGS, "-o", run)
            lines = log.splitlines()
            struck = next((i for i, line in enumerate(lines) if "INJECTED" in line), len(lines) - 1)
            where = "\n".join([f"{call} number {at}: {error}", done.stderr, *lines[max(struck - 3, 0) : struck + 4]])
            assert "INJECTED" in log or done.returncode == 0, where
            assert done.returncode in (0, 2), where
            if "INJECTED" not in log:
                outcomes[call, "not struck"] += 1
            elif done.returncode == 0:  # a convenience failed: the snapshot, a trial of an optional call
                assert assert_same_run(whole, run) > 50, where
                outcomes[call, "whole"] += 1
            else:
                assert message in done.stderr, where
                outcomes[call, "said"] += 1
            if run.exists():
                lockstep("verify", run)
                lockstep("replay", "--resume", run)
                assert assert_same_run(whole, run) > 50, where
            else:
                assert done.returncode == 2 and "--resume" not in done.stderr, where
            shutil.rmtree(place)
    return calls, outcomes
