"""Input from outside: nested, endless and huge files are refused at once; names control no terminal; no output replaces
an input. Each case is one start of the program, in at most ten seconds and 2 GiB."""

import json
import os
import re
import resource
import subprocess

import pytest

SECONDS = 10
# What other libraries say, and what their exceptions are called.
RAW = re.compile(
    r"\[json\.exception|TOML_|parse_error|std::|terminate called|internal error|filesystem error|"
    r"Error while parsing|basic_string|stoi|stod|HDF5-DIAG|Could not convert"
)
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))


@pytest.fixture
def refused(binary_dir, tmp_path):
    """Runs the program, which must say why it leaves; returns what it said."""

    def run(*args, code=2):
        done = subprocess.run(
            [str(binary_dir / "lockstep"), *map(str, args)],
            capture_output=True,
            cwd=tmp_path,
            timeout=SECONDS,
            preexec_fn=limit_memory,
        )
        error = done.stderr.decode()
        assert done.returncode == code, (args, done.returncode, error)
        assert not RAW.search(error), error
        assert not CONTROL.search(error + done.stdout.decode()), (error, done.stdout)
        assert len(error) < 200_000
        return error

    return run


DEEP = 50_000
NESTED = {
    "dotted key": "a." * DEEP + "b = 1\n",
    "table's name": "[" + "a." * DEEP + "b]\n",
    "inline tables": "x = " + "{a = " * DEEP + "1" + "}" * DEEP,
    "arrays": "x = " + "[" * DEEP + "]" * DEEP,
}


@pytest.mark.parametrize("text", NESTED.values(), ids=NESTED.keys())
def test_nested_toml(refused, tmp_path, text):
    (tmp_path / "a.toml").write_text(text)
    (tmp_path / "b.json").write_text("{}")
    assert "line 1: " in refused("explain", "mlp", "--policy", "a.toml")
    assert "32" in refused("check", "mlp", "--baseline", "b.json", "--rules", "a.toml")


def test_files_that_never_end_or_never_begin(refused, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pipe.toml").symlink_to("pipe")
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "b.json").write_text("{}")
    for name, kind in (("pipe.toml", "is a pipe"), ("zero.toml", "is a device"), ("folder.toml", "is a directory")):
        for args in (
            ("explain", "mlp", "--policy", name),
            ("dot", "--csv", name),
            ("check", "mlp", "--baseline", name),
            ("replay", "mlp", "--lanes", name, "-o", "x.h5"),
            ("check", "mlp", "--baseline", "b.json", "--rules", name),
            ("replay", "gpt", "--data", f"text:{name}", "-o", "x.h5"),
        ):
            if name == "folder.toml" and "--rules" not in args and "--baseline" in args:
                continue  # a folder of baselines
            assert kind in refused(*args), args
    for args in (
        ("report", "pipe"),
        ("recommend", "pipe"),
        ("verify", "pipe"),
        ("replay", "pipe", "-o", "x.h5"),
        ("replay", "--resume", "pipe"),
        ("check", "pipe", "--baseline", "b.json"),
        ("replay", "mlp", "--start-from", "pipe.state:fp32", "-o", "x.h5"),
    ):
        refused(*args)
    assert not (tmp_path / "x.h5").exists()


def test_huge_files(refused, tmp_path):
    for name, size in (("a.toml", 1 << 20), ("a.csv", 64 << 20), ("a.json", 64 << 20), ("a.txt", 1 << 30)):
        with open(tmp_path / name, "wb") as file:
            file.truncate(size + 1)
    (tmp_path / "b.json").write_text("{}")
    for args in (
        ("explain", "mlp", "--policy", "a.toml"),
        ("dot", "--csv", "a.csv"),
        ("check", "mlp", "--baseline", "a.json"),
        ("replay", "gpt", "--data", "text:a.txt", "-o", "x.h5"),
        ("check", "mlp", "--baseline", "b.json", "--rules", "a.toml"),
    ):
        assert "has more than" in refused(*args)


def test_hostile_csv(refused, tmp_path):
    for name, text, words in (
        ("columns", "a,b" + "," * 5_000_000, "at most 1000"),
        ("lines", "\n" * 10_000_000, "empty, must have a header"),
        ("words", "a,b\n" + " " * 10_000_000 + ",1\n", "has 1 hexadecimal digits"),
        ("cell", "a,b\n" + "9" * 10_000_000 + ",1\n", "must be hexadecimal digits"),
        ("name", "a\x1b[31m,b\n1,1\n", "no column 'a'"),
    ):
        (tmp_path / f"{name}.csv").write_text(text)
        assert words in refused("dot", "--csv", f"{name}.csv", "--accumulator", "fp32_fused", "--format", "fp32"), name


def test_absurd_numbers(refused):
    long = "x" * 100_000
    for args, words in (
        (("mlp", "--size", "hidden1=16777216,hidden2=16777216"), "GiB, this machine has"),
        (("mlp", "--size", "hidden1=1e300"), "at most 16777216"),
        (("mlp", "--size", "hidden1=nan"), "must be an integer"),
        (("gpt", "--size", "layers=16777216"), "at most 1000"),
        (("gpt", "--size", "width=16777216"), "GiB, this machine has"),
        (("gpt", "--size", "context=16777216"), "must hold a window"),
        (("mlp", "--batch", "1048576"), "at most the"),
        (("mlp", "--batch", "99999999999999999999"), "1 <= N <= 1048576"),
        (("mlp", "--steps", "9223372036854775808"), "2^63-1"),
        ((long,), "bytes left out"),
        (("mlp", "--lanes", long), "no such preset"),
        (("mlp", "--data", "synthetic:99999999999999999999"), "must be an integer"),
    ):
        assert words in refused("replay", *args, "-o", "x.h5"), args


def test_usage_errors_in_our_own_words(refused):
    for args, words in (
        (("replay", "mlp", "--steps"), "--steps: a value required"),
        (("replay", "mlp", "--quiet=x"), "--quiet: takes no value"),
        (("replay", "mlp", "--steps", "1", "--steps", "2"), "--steps: one value required, 2 given"),
        (("report",), "RUN: missing"),
        (("baseline",), "one of record, propose, diff, approve"),
        (("baseline", "approve"), "--reason: missing"),
        (("rep\x1b[31mort",), "rep\\u001b[31mort"),
        (
            (
                "report",
                "--\x1b]0;x\x07",
            ),
            "\\u001b]0;x",
        ),
        (("replay", "mlp", "--simd", "a\nlockstep: fine"), "a\\u000alockstep: fine"),
        (
            (
                "report",
                b"\xff.h5".decode("utf-8", "surrogateescape"),
            ),
            "not UTF-8",
        ),
    ):
        encoded = [arg.encode("utf-8", "surrogateescape") for arg in args]
        assert words in refused(*map(os.fsdecode, encoded)), args


HOSTILE_TOML = r"""name = "red\u001b[31m\n[x]"
help = "\u001b]0;title\u0007"
version = "1\u009b"
[storage]
weight = "fp61\n  - line 99: not a problem\u001b[2J"
"k\u001b\n[y]" = 1
[loss_scale]
kind = "\u202e"
"""


def test_texts_of_a_policy_are_inert(lockstep, tmp_path):
    (tmp_path / "h.toml").write_text('help = "a\\u001b[31m\\nb"\n')
    shown = lockstep("explain", "mlp", "--policy", "h.toml", cwd=tmp_path).stdout
    assert not CONTROL.search(shown) and "mlp under h: a\\u001b[31m\\u000ab\n" in shown


def test_names_in_messages_are_inert(refused, tmp_path):
    (tmp_path / "a.toml").write_text(HOSTILE_TOML)
    error = refused("explain", "mlp", "--policy", "a.toml")
    assert "\n  - line 99" not in error and "\\u000a  - line 99" in error
    for words in ("red\\u001b[31m", "1\\u009b", "k\\u001b", "\\u202e"):
        assert words in error


def test_file_names_in_output_are_inert(lockstep, tmp_path):
    name = "a\nb\x1b[31m $(touch x)`touch y`'\";.h5"
    done = lockstep("replay", "mlp", "--steps", 1, "--batch", 4, "--data", "synthetic:100", "-o", name, cwd=tmp_path)
    assert not CONTROL.search(done.stdout + done.stderr)
    (command,) = [line for line in done.stdout.splitlines() if line.startswith("  lockstep report ")]
    quoted = command.removeprefix("  lockstep report ")
    back = subprocess.run(
        ["bash", "-c", f"printf %s {quoted}"], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert back.stdout == name
    for form in ("text", "json", "markdown", "csv", "html"):
        args = ("-o", "tables/") if form == "csv" else ()
        shown = lockstep("report", name, "--format", form, *args, cwd=tmp_path).stdout
        assert "\x1b" not in shown
        if form == "json":
            assert json.loads(shown)["run"]
        elif form != "html":
            assert not CONTROL.search(shown)
    done = lockstep(
        "replay", "mlp", "--steps", 1, "--batch", 4, "--data", "synthetic:100", "--output=-dash.h5", cwd=tmp_path
    )
    assert "lockstep report ./-dash.h5\n" in done.stdout  # "-dash.h5" would be read as an option
    assert sorted(p.name for p in tmp_path.iterdir() if p.name in ("x", "y")) == []


def test_no_output_replaces_an_input(lockstep, tmp_path):
    quick = ("--steps", 1, "--batch", 4, "--overwrite")
    (tmp_path / "p.toml").write_text('[storage]\nweight = "bf16"\n')
    (tmp_path / "text.txt").write_text("a tensor holds numbers. " * 400)
    lockstep("replay", "mlp", *quick, "--data", "synthetic:100", "-o", "run.h5", cwd=tmp_path)
    os.link(tmp_path / "text.txt", tmp_path / "hard.h5")
    os.symlink("p.toml", tmp_path / "soft.h5")
    os.link(tmp_path / "run.h5", tmp_path / "run2.txt")
    (tmp_path / "other.h5.progress.json").symlink_to("text.txt")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    gpt = ("replay", "gpt", *quick, "--size", "layers=1,width=16,heads=1,context=16", "--data", "text:text.txt")
    for args, words in (
        ((*gpt, "-o", "hard.h5"), "--data"),
        ((*gpt, "-o", "other.h5"), "it writes other.h5.progress"),
        (("replay", "mlp", *quick, "--lanes", "fp32,p.toml", "-o", "soft.h5"), "--lanes"),
        (("replay", "mlp", *quick, "--at", "0 fp32 #0", "--save-values", "a.h5", "-o", "a.h5"), "the same file"),
        (("report", "run.h5", "-o", "run2.txt", "--overwrite"), "RUN run.h5"),
        (("recommend", "mlp", "--fix", "p.toml", "-o", "p.toml", "--overwrite"), "--fix p.toml"),
        (("recommend", "mlp", "-o", "a.toml", "--report", "a.toml"), "the same file"),
        (("verify", "--hardware", "--vectors", "text.txt", "--json", "hard.h5", "--overwrite"), "--vectors"),
    ):
        error = lockstep(*args, code=2, cwd=tmp_path).stderr
        assert "is an input of this command" in error or "the same file" in error, error
        assert words in error
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_thousands_of_equal_lanes(refused):
    """Each named once, before any of them is looked at."""
    assert "lane 'fp8-delayed@hopper': listed 4000 times" in refused(
        "replay", "mlp", "--lanes", "fp32," + ",".join(["fp8-delayed@hopper"] * 4000), "-o", "x.h5"
    )


def test_a_search_says_where_it_cannot_keep_its_runs(refused, tmp_path):
    (tmp_path / "mlp.recommend").write_text("not a folder")
    error = refused("recommend", "mlp", "--steps", "2")
    assert "mlp.recommend: cannot be made: " in error and "folder that can be written to" in error
