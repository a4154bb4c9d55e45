"""How far a run is: counts, the time left by hand, and what shows where."""

import io

import pytest

from resnet_mechanisms import progress
from resnet_mechanisms.progress import Job, Progress


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def jobs(tmp_path):
    return {
        1: Job("training a", "train", 100, str(tmp_path / "a.log")),
        2: Job("training b", "train", 50, str(tmp_path / "b.log")),
        3: Job("measuring a", "measure", 40, str(tmp_path / "c.log")),
        4: Job("ra_depth", "figures", 3),
    }


def test_time_left_by_hand(tmp_path, clock):
    """Two at once; expectations, then corrected by what a rule took, then by what a job says."""
    run = Progress(jobs(tmp_path), 2, [].append, clock=clock)
    assert run.seconds_left() == 100  # (100 + 50 + 40 + 3) / 2 = 96.5, but the longest is 100
    assert run.line() == "0 of 4 jobs done, by a first guess 1.67 min left"
    run.begin(1)
    run.begin(2)
    clock.now = 30
    assert run.seconds_left() == 70  # 70, 20, 40, 3: the longest
    clock.now = 75
    run.finish(2)  # 50 expected, 75 taken: everything takes 1.5 times as long
    # Left: 100 * 1.5 - 75 = 75, 40 * 1.5 = 60, 3 * 1.5; the longest 75, the sum 139.5 / 2 = 69.75.
    assert run.seconds_left() == pytest.approx(75)
    (tmp_path / "a.log").write_text("seed 1: epoch 3/9, loss 0.1, 200 s left\n")
    assert run.seconds_left() == pytest.approx(200)
    assert run.line() == (
        "1 of 4 jobs done, 1 running, about 3.33 min left | training a: seed 1: epoch 3/9"
    )
    run.finish(1)  # 75 of 100; of trainings the median of 1.5 and .75, and so of all
    run.begin(3)
    assert run.seconds_left() == pytest.approx(max(40, (40 + 3) / 2 * 1.125, 40 * 1.125))


def test_failures_and_further_attempts(tmp_path, clock):
    run = Progress(jobs(tmp_path), 2, [].append, clock=clock)
    run.begin(3)
    run.fail(3)
    assert "1 failed" in run.line() and "running" not in run.line()
    run.begin(3)
    assert "failed" not in run.line() and "1 running" in run.line()
    for number in (1, 2, 3, 4, 99):  # of jobs it does not know, nothing
        run.begin(number)
        run.finish(number)
    assert run.line() == "4 of 4 jobs done" and run.seconds_left() == 0


@pytest.mark.parametrize(
    ("text", "line"),
    [("", ""), ("one\ntwo\n\n", "two"), ("half a l", "half a l"), ("x" * 5000, "x" * 2000)],
)
def test_last_line(tmp_path, text, line):
    path = tmp_path / "log"
    assert progress.last_line(path) == ""
    path.write_text(text)
    assert progress.last_line(path) == line


def test_on_a_terminal_one_line_in_the_log_some(tmp_path, clock):
    """A line replaces the one before and goes for other messages; the log has one each 15 s."""
    screen, log = io.StringIO(), []
    run = Progress(jobs(tmp_path), 2, log.append, screen, clock)
    for clock.now in range(31):
        run.show()
    assert len(log) == 3 and log[0] == "0 of 4 jobs done, by a first guess 1.67 min left"
    said = screen.getvalue()
    assert said.count("\n") == 0 and said.count("\r\033[K0 of 4 jobs done") == 31
    run.clear()
    run.clear()
    assert screen.getvalue() == said + "\r\033[K"
    run.stop()
    assert log[-1].startswith("0 of 4 jobs done") and log[-1].endswith("after 30 s")


def test_it_shows_itself_until_it_is_stopped(tmp_path, monkeypatch):
    """The thread; with a real clock that is made to tick a thousand times faster."""
    monkeypatch.setattr(progress, "ON_TERMINAL", 0.001)
    monkeypatch.setattr(progress, "IN_LOG", 0)
    log = []
    run = Progress(jobs(tmp_path), 1, log.append)
    run.keep_showing()
    while len(log) < 5:
        pass
    run.stop()
    count = len(log)
    assert log[-1].startswith("0 of 4") and " after " in log[-1]
    run.stopped.wait()
    assert len(log) == count


def test_no_line_where_nobody_looks(monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert progress.stream(quiet=False) is None
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    assert progress.stream(quiet=False) is screen and progress.stream(quiet=True) is None
