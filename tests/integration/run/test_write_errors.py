"""Writes that fail: the message gives the reason and what to do about that reason; a run is only continued where there
is one. A reader that has seen enough (`| head`) is no error."""

import os
import resource
import signal
import subprocess

import pytest
from conftest import assert_same_run

RUN = ("replay", "mlp", "--data", "synthetic:200", "--steps", 30, "--batch", 8, "--checkpoint-every", 5)
KIB = 1 << 10


@pytest.fixture
def lockstep_in(binary_dir, tmp_path):
    """Starts the program with a limit on the size of files, in bytes, and returns it when it has ended."""

    def run(*args, limit=None, user=None, **kwargs):
        def prepare():
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        # Python itself ignores both signals, which a child would inherit.
        return subprocess.run(
            [str(binary_dir / "lockstep"), *map(str, args)],
            cwd=tmp_path,
            text=True,
            user=user,
            preexec_fn=prepare,
            restore_signals=True,
            **kwargs,
        )

    return run


def test_a_limit_on_the_size_of_files(lockstep, lockstep_in, tmp_path):
    whole = tmp_path / "whole.h5"
    lockstep(*RUN, "--quiet", "-o", whole)
    size = whole.stat().st_size
    # Before the first step nothing can be continued; later the steps so far are intact.
    done = lockstep_in(*RUN, "-o", "early.h5", limit=4 * KIB, capture_output=True)
    assert done.returncode == 2, done
    assert os.strerror(27) in done.stderr and "ulimit -f" in done.stderr and "disk space" not in done.stderr
    assert "--resume" not in done.stderr and not (tmp_path / "early.h5").exists()
    done = lockstep_in(*RUN, "-o", "late.h5", limit=size * 7 // 10, capture_output=True)
    assert done.returncode == 2, done
    assert "File too large" in done.stderr and "ulimit -f" in done.stderr
    if (tmp_path / "late.h5").exists():
        assert "lockstep replay --resume late.h5" in done.stderr
        lockstep("replay", "--resume", tmp_path / "late.h5", "--quiet")
        assert assert_same_run(whole, tmp_path / "late.h5") > 50
    done = lockstep_in("report", "whole.h5", "-o", "a.html", limit=KIB, capture_output=True)
    assert done.returncode == 2 and "File too large" in done.stderr
    assert sorted(path.name for path in tmp_path.glob("a.html*")) == []


def test_no_permission(lockstep, lockstep_in, tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    if os.access(folder, os.W_OK):
        pytest.skip("root may write everywhere")
    done = lockstep_in(*RUN, "-o", "locked/a.h5", capture_output=True)
    assert done.returncode == 2 and "--resume" not in done.stderr and "disk space" not in done.stderr


def test_a_text_file_that_cannot_be_written(lockstep, tmp_path):
    lockstep(*RUN, "--quiet", "-o", tmp_path / "a.h5")
    error = lockstep("report", tmp_path / "a.h5", "-o", tmp_path / "none" / "a.html", code=2).stderr
    assert "No such file or directory; make the folder first" in error
    error = lockstep("report", tmp_path / "a.h5", "-o", tmp_path / ("x" * 250 + ".html"), code=2).stderr
    assert "File name too long" in error


def test_a_reader_that_has_seen_enough(binary_dir, tmp_path):
    program = binary_dir / "lockstep"
    for command in (f"{program} list ops", f"{program} --help", f"{program} replay --help"):
        script = f"{command} | true; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        assert done.stdout in ("141\n", "0\n") and done.stderr == ""
    # A pipe whose reader has gone before anything is written.
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([program, "list", "ops"], stdout=write, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 141 and done.stderr == ""
    done = subprocess.run([program, "list", "nothing"], stdout=write, stderr=write)
    assert done.returncode == 2
    os.close(write)


def test_a_run_whose_messages_nobody_reads_goes_on(binary_dir, lockstep, tmp_path):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [binary_dir / "lockstep", *map(str, RUN), "-o", tmp_path / "a.h5"],
        stdout=subprocess.PIPE,
        stderr=write,
        text=True,
    )
    os.close(write)
    assert done.returncode == 0 and "Recorded 30 steps" in done.stdout
    lockstep(*RUN, "--quiet", "-o", tmp_path / "b.h5")
    assert assert_same_run(tmp_path / "a.h5", tmp_path / "b.h5") > 50


def test_a_full_disk_behind_standard_output(binary_dir):
    with open("/dev/full", "w") as full:
        done = subprocess.run([binary_dir / "lockstep", "list", "ops"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("lockstep: standard output: cannot be written: No space left on device; free some")


def test_signals_that_are_ignored_stay_at_their_default_in_other_programs(binary_dir, tmp_path):
    """`check --a PROGRAM` starts programs, which must not inherit what this one ignores."""
    fake = tmp_path / "fake"
    fake.write_text("#!/bin/sh\ngrep SigIgn /proc/self/status >> " + str(tmp_path / "ignored") + "\nexit 1\n")
    fake.chmod(0o755)
    subprocess.run(
        [binary_dir / "lockstep", "check", "mlp", "--a", fake, "--b", fake],
        cwd=tmp_path,
        capture_output=True,
        restore_signals=True,
    )
    (line,) = (tmp_path / "ignored").read_text().splitlines()
    mask = int(line.split()[1], 16)
    assert not any(mask & 1 << number - 1 for number in (signal.SIGPIPE, signal.SIGXFSZ))


def test_exit_codes_are_documented(lockstep):
    overview = lockstep("--help").stdout
    for code in ("130 stopped by Ctrl-C", "143 by SIGTERM", "141 standard output"):
        assert code in overview
