"""`report --live`: follows a replay in the background, refuses other hosts, says when the replay is gone."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time

import pytest
from report_browser import NARROW, WIDE, chromium, overflow_of  # noqa: F401  (a fixture)

PATIENCE = 30  # seconds, on a busy machine


def wait_for(get, what):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = get()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{PATIENCE} s, and still not: {what}")


class Live:
    """`lockstep report --live RUN`."""

    def __init__(self, program, run, *options):
        self.process = subprocess.Popen(
            [program, "report", "--live", str(run), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.first_line = self.process.stdout.readline()
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)/ ", self.first_line)[1])

    def ask(self, path="/snapshot.json", method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.putrequest(method, path, skip_host="Host" in headers or "skip_host" in headers)
        for name, value in headers.items():
            for one in value if isinstance(value, list) else [value]:
                if name != "skip_host":
                    connection.putheader(name, one)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer

    def news(self):
        status, text, _ = self.ask()
        assert status == 200
        return json.loads(text)

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(PATIENCE)
        # Not communicate(), which loses what readline() has buffered of the next lines.
        rest, errors = self.process.stdout.read(), self.process.stderr.read()
        assert self.process.returncode == 0 and errors == ""
        return rest


@pytest.fixture
def program(binary_dir):
    return str(binary_dir / "lockstep")


@pytest.fixture
def follow(program):
    """follow(RUN, OPTION...) begins a live view; none outlives the test."""
    begun = []

    def make(*arguments):
        begun.append(Live(program, *arguments))
        return begun[-1]

    yield make
    for live in begun:
        live.process.kill()
        live.process.wait()


@pytest.fixture
def replay(program, tmp_path):
    """A replay in the background that would take hours, and its run file."""
    run = tmp_path / "run.h5"
    process = subprocess.Popen(
        [
            program,
            "replay",
            "lenet",
            "--data",
            "synthetic:200",
            "--steps",
            "1000000",
            "--batch",
            "8",
            "--lr",
            "0.3",
            "--lanes",
            "torch-autocast-fp16,pure-fp16",
            "-o",
            str(run),
            "--quiet",
        ],
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: os.path.exists(f"{run}.progress.json"), "a snapshot")
    yield process, run
    process.kill()
    process.wait()


def test_a_run_is_followed_until_it_is_killed(follow, replay, lockstep):
    process, run = replay
    live = follow(run)
    assert live.first_line == f"Live view of {run}: http://127.0.0.1:{live.port}/ (Ctrl-C ends it)\n"
    first = wait_for(lambda: live.news()["snapshot"]["steps_done"] > 8 and live.news(), "eight steps")
    assert first["state"] == "running" and first["commands"] == []
    assert re.fullmatch(r"Running: \d+ of 1 000 000 steps done, about .* left\.", first["sentence"])
    snapshot = first["snapshot"]
    lanes = {lane["name"]: lane for lane in snapshot["lanes"]}
    assert list(lanes) == ["fp32", "torch-autocast-fp16", "pure-fp16", "twin"]
    assert snapshot["course"] == list(range(snapshot["steps_done"]))
    assert lanes["fp32"]["losses"][-1] == lanes["fp32"]["loss"] and lanes["fp32"]["skips"] == []
    half = wait_for(lambda: [lane for lane in live.news()["snapshot"]["lanes"] if lane["skipped_steps"]], "a skip")[0]
    assert half["name"] == "torch-autocast-fp16" and half["skips"][0]["scale"] == 65536
    assert "_backward_" in half["skips"][0]["culprit"]
    pure = live.news()["snapshot"]["lanes"][2]
    assert pure["finding_count"] == len(pure["findings"]) > 0
    lost = next(finding for finding in pure["findings"] if finding["kind"] == "lost updates")
    assert lost["first_step"] == 0 and "update energy is lost" in lost["sentence"]
    assert lanes["fp32"]["findings"] == []
    wait_for(lambda: live.news()["snapshot"]["steps_done"] > snapshot["steps_done"] + 2, "more steps")

    process.kill()
    process.wait()
    ended = wait_for(lambda: live.news()["state"] == "stopped" and live.news(), "the end")
    step = int(re.fullmatch(r"The run stopped at step (\d+) of 1000000\.", ended["sentence"])[1])
    assert step >= ended["snapshot"]["steps_done"]
    assert [c["command"] for c in ended["commands"]] == [
        f"lockstep replay --resume {run}",
        f"lockstep report {run} -o run.html",
    ]
    assert f"steps recorded  {step} of" in re.sub("  +", "  ", lockstep("report", run).stdout)
    assert live.end() == ended["sentence"] + "\n", "the terminal says so, too"


def table_of(page, name):
    return [row.locator("td").all_inner_texts() for row in page.locator(f"#{name} tbody tr").all()]


def test_the_page_in_a_browser_follows_the_run_to_its_end(chromium, follow, replay):
    process, run = replay
    live = follow(run)
    address = f"http://127.0.0.1:{live.port}/"
    page = chromium.new_page(viewport=WIDE)
    faults = []
    page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(address) else faults.append(request.url))
    page.goto(address)
    page.get_by_text(re.compile(r"^Running: \d+ of 1 000 000 steps done")).wait_for()
    wait_for(lambda: [row for row in table_of(page, "skips") if row[1] == "torch-autocast-fp16"], "a skip on the page")
    # Both are of now: the page once a second, so that the page's loss is among the losses so far.
    shown = table_of(page, "lanes")
    assert [row[0] for row in shown] == ["fp32", "torch-autocast-fp16", "pure-fp16", "twin"]
    losses = live.news()["snapshot"]["lanes"][0]["losses"]
    assert any(abs(float(shown[0][1]) - loss) <= 5e-5 for loss in losses if loss is not None), shown[0]
    skips = live.news()["snapshot"]["lanes"][1]["skips"]
    assert [row for row in table_of(page, "skips") if row[1] == "torch-autocast-fp16"][-1][:4] == [
        str(skips[0]["step"]),
        "torch-autocast-fp16",
        "2^16",
        skips[0]["culprit"],
    ]
    told = [row for row in table_of(page, "findings") if row[2].startswith("lost updates: ")]
    assert [row[:2] for row in told] == [["pure-fp16", "0"]] and not page.locator("#no-findings").is_visible()
    assert page.locator("#losses path[d^='M']").count() >= 2 and page.locator("#scales path[d^='M']").count() == 1
    for size in (WIDE, NARROW):
        page.set_viewport_size(size)
        assert overflow_of(page) == 0, size
    process.kill()
    process.wait()
    page.get_by_text(re.compile(r"^The run stopped at step \d+ of 1000000\.$")).wait_for()
    assert page.locator("#commands pre").all_inner_texts() == [
        f"lockstep replay --resume {run}",
        f"lockstep report {run} -o run.html",
    ]
    assert faults == []
    live.end()
    page.get_by_text(re.compile("^No news: lockstep report --live does not answer")).wait_for()
    page.close()


def test_only_get_of_four_paths_from_this_machine(follow, replay):
    live = follow(replay[1])
    own = f"127.0.0.1:{live.port}"
    for host in (own, f"localhost:{live.port}", "localhost", "127.0.0.1"):
        assert live.ask(Host=host)[0] == 200, host
    for host in (
        "evil.example",
        f"evil.example:{live.port}",
        "127.0.0.1:1",
        "127.0.0.1.evil.example",
        "",
        [own, "evil.example"],
        f"localhost:{live.port}.evil.example",
        f"[::1]:{live.port}",
    ):
        status, text, _ = live.ask(Host=host)
        assert status == 403 and "lanes" not in text, host
    assert live.ask(skip_host=True)[0] == 403
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
        status, _, answer = live.ask(method=method)
        assert status in (400, 405) and answer.getheader("Access-Control-Allow-Origin") is None, method
    for path in (
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/run.h5",
        "/snapshot.json/..",
        "/live.js/../x",
        "/?/../..",
        "/live.html",
    ):
        status, text, _ = live.ask(path)
        assert status in (400, 404) or (status == 200 and path == "/?/../.."), path
        assert "root:" not in text
    for path, kind in (
        ("/", "text/html"),
        ("/live.css", "text/css"),
        ("/live.js", "text/javascript"),
        ("/snapshot.json", "application/json"),
    ):
        status, text, answer = live.ask(path)
        assert status == 200 and len(text) > 100 and answer.getheader("Content-Type").startswith(kind)
        policy = answer.getheader("Content-Security-Policy")
        assert "default-src 'none'" in policy and "connect-src 'self'" in policy
    page = live.ask("/")[1]
    assert "http:" not in page and "<script>" not in page and "style=" not in page
    with socket.socket() as other:  # not reachable by another address of this machine
        other.settimeout(2)
        with pytest.raises(OSError):
            other.connect(("127.0.0.2", live.port))
    live.end()


def test_a_finished_run_and_one_that_was_interrupted(follow, lockstep, replay, tmp_path):
    done = tmp_path / "done.h5"
    lockstep("replay", "mlp", "--data", "synthetic:100", "--steps", 4, "--batch", 8, "--quiet", "-o", done)
    live = follow(done)
    news = live.news()
    assert news["state"] == "finished" and news["sentence"] == "The run has finished: 4 steps."
    assert [c["command"] for c in news["commands"]] == [f"lockstep report {done} -o done.html"]
    assert live.end() == "The run has finished: 4 steps.\n"
    process, run = replay
    live = follow(run)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: live.news()["state"] == "stopped", "the end")
    assert process.wait() == 130
    live.end()


def test_a_new_run_replaces_the_snapshot_of_an_older_one(follow, program, lockstep, tmp_path):
    run = tmp_path / "run.h5"
    lockstep("replay", "mlp", "--data", "synthetic:100", "--steps", 4, "--batch", 8, "--quiet", "-o", run)
    live = follow(run)
    assert live.news()["state"] == "finished"
    process = subprocess.Popen(
        [
            program,
            "replay",
            "mlp",
            "--data",
            "synthetic:100",
            "--steps",
            "1000000",
            "--batch",
            "8",
            "--overwrite",
            "-o",
            str(run),
            "--quiet",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: live.news()["state"] == "running", "the new run")
    finally:
        process.kill()
        process.wait()
    live.end()


def test_a_snapshot_of_wrong_types_is_none_and_ends_nothing(follow, tmp_path):
    snapshot = tmp_path / "run.h5.progress.json"
    snapshot.write_text('{"state": 5, "steps_done": "x", "process": [1]}')
    live = follow(tmp_path / "run.h5")
    for wrong in (
        {"state": 5},
        {"steps_done": "x"},
        {"steps": -1},
        {"process": [1]},
        {"process": {"id": "1"}},
        {"seeds": None},
        {"seconds_left": "soon"},
        [1],
        5,
        None,
    ):
        snapshot.write_text(json.dumps(wrong))
        news = live.news()
        assert (news["state"], news["snapshot"]) == ("waiting", None), wrong
        assert news["sentence"] == "The snapshot next to the run is damaged: it is not as `replay` writes it."
    snapshot.unlink()
    assert live.news()["sentence"] == "The run has not begun: there is no snapshot of it yet."
    snapshot.write_text('{"state": "running", "steps": 4, "steps_done": 1, "seconds_left": null}')
    assert live.news()["sentence"] == "Running: 1 of 4 steps done."
    assert live.end() == ""


def test_a_run_file_without_its_snapshot(follow, lockstep, tmp_path):
    run = tmp_path / "run.h5"
    lockstep("replay", "mlp", "--data", "synthetic:100", "--steps", 4, "--batch", 8, "--quiet", "-o", run)
    (tmp_path / "run.h5.progress.json").unlink()
    live = follow(run)
    assert live.news()["sentence"] == "4 of 4 steps recorded; no snapshot next to it."
    live.end()
    run.write_text("no run")
    assert "not an HDF5 file" in lockstep("report", "--live", run, code=2).stderr


def test_errors_say_what_to_do(follow, lockstep, replay, tmp_path):
    error = lockstep("report", "--live", tmp_path / "none.h5", code=2).stderr
    assert "no such file" in error and "lockstep replay MODEL -o" in error
    error = lockstep("report", "--live", replay[1], "-o", "x.html", "--table", "lanes", code=2).stderr
    assert "--live and -o" in error and "--live and --table" in error
    assert "--port 80: only of --live" in lockstep("report", replay[1], "--port", 80, code=2).stderr
    live = follow(replay[1])
    error = lockstep("report", "--live", replay[1], "--port", live.port, code=2, timeout=PATIENCE).stderr
    assert f"--port {live.port}: cannot be used" in error
    live.end()
    again = follow(replay[1], "--port", str(live.port))
    assert again.port == live.port
    again.end()


def test_half_sent_requests_do_not_keep_others_waiting(follow, replay):
    live = follow(replay[1])
    waiting = [socket.create_connection(("127.0.0.1", live.port), timeout=PATIENCE) for _ in range(100)]
    for one in waiting:
        one.sendall(b"GET /snapshot.json HTTP/1.1\r\nHost: 127")
    begun = time.monotonic()
    assert live.news()["run"] == str(replay[1])
    assert time.monotonic() - begun < 10
    for one in waiting:
        one.close()
