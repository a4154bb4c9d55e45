"""How far a run is: jobs done and left, what runs now with its epoch or block, time left.

Knows jobs as the caller describes them. Current epochs and blocks are the last lines of the jobs'
logs; the time left is what the jobs left are expected to take (costs.py), corrected by what those
finished have taken, or what a running job says itself, over the jobs that run at once.
"""

import re
import shutil
import statistics
import sys
import threading
import time
from dataclasses import dataclass

from .plan import duration

# Seconds between lines: on a terminal they replace each other, elsewhere they stay.
ON_TERMINAL, IN_LOG = 1, 15
SAYS_LEFT = re.compile(r",? (\d+) s left$")
DETAILS = re.compile(r", (loss|worst residual) .*$")  # of interest in the log alone


@dataclass
class Job:
    """A job to run: what it does, its rule, expected seconds, its log; when it began."""

    text: str
    rule: str
    seconds: float
    log: str | None = None
    began: float | None = None


def last_line(path):
    """The last line of a log, empty where there is none yet."""
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 2000))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


class Progress:
    """The state of a run of `jobs`, {id: Job}, `together` at once; told which begin and end.

    write(line) keeps a line for good, as in a log; terminal: a stream on which a line is replaced
    by the next, None for none. clock: seconds, time.monotonic.
    """

    def __init__(self, jobs, together, write, terminal=None, clock=time.monotonic):
        self.jobs, self.together, self.write = dict(jobs), max(1, together), write
        self.terminal, self.clock = terminal, clock
        self.done, self.failed, self.ratios = set(), set(), {}
        self.started, self.written, self.shown = clock(), None, False
        self.lock, self.stopped = threading.RLock(), threading.Event()

    # --- What happens

    def begin(self, number):
        with self.lock:
            if number in self.jobs:
                self.jobs[number].began = self.clock()
                self.failed.discard(number)  # a further attempt

    def finish(self, number):
        with self.lock:
            if number not in self.jobs:
                return
            job = self.jobs[number]
            self.done.add(number)
            if job.began is not None and job.seconds > 0:
                taken = self.clock() - job.began
                self.ratios.setdefault(job.rule, []).append(taken / job.seconds)

    def fail(self, number):
        with self.lock:
            if number in self.jobs:
                self.failed.add(number)
                self.jobs[number].began = None

    # --- What it comes to

    def running(self):
        over = self.done | self.failed
        return [j for n, j in self.jobs.items() if j.began is not None and n not in over]

    def seconds_left(self):
        """Expected seconds until all jobs are done."""
        known = [ratio for ratios in self.ratios.values() for ratio in ratios]
        general = statistics.median(known) if known else 1.0
        over, left = self.done | self.failed, []
        for number, job in self.jobs.items():
            if number in over:
                continue
            ratios = self.ratios.get(job.rule)
            seconds = job.seconds * (statistics.median(ratios) if ratios else general)
            if job.began is not None:
                said = SAYS_LEFT.search(last_line(job.log)) if job.log else None
                seconds = float(said[1]) if said else max(0, seconds - self.clock() + job.began)
            left.append(seconds)
        return max(sum(left) / self.together, max(left, default=0))

    def line(self):
        """`45 of 112 jobs done, 2 running, about 6 min left | training ...: seed 1, epoch 3`."""
        with self.lock:
            running = self.running()
            parts = [f"{len(self.done)} of {len(self.jobs)} jobs done"]
            if running:
                parts.append(f"{len(running)} running")
            if self.failed:
                parts.append(f"{len(self.failed)} failed")
            left = self.seconds_left()
            if len(self.done) + len(self.failed) < len(self.jobs):
                about = "about" if self.ratios else "by a first guess"
                parts.append(f"{about} {duration(round(left))} left")
            words = [", ".join(parts)]
            for job in running:
                said = last_line(job.log) if job.log else ""
                said = DETAILS.sub("", SAYS_LEFT.sub("", said))
                words.append(job.text + (f": {said}" if said else ""))
        return " | ".join(words)

    # --- Showing it

    def show(self):
        line = self.line()
        if self.terminal is not None:
            width = shutil.get_terminal_size().columns - 1
            self.terminal.write("\r\033[K" + line[:width])
            self.terminal.flush()
            self.shown = True
        now = self.clock()
        if self.written is None or now - self.written >= IN_LOG:
            self.write(line)
            self.written = now

    def clear(self):
        """Take the line off the terminal, for what else is to be said there."""
        with self.lock:
            if self.shown:
                self.terminal.write("\r\033[K")
                self.terminal.flush()
                self.shown = False

    def keep_showing(self):
        """Show it from now on, in a thread, until `stop`."""

        def run():
            while not self.stopped.wait(ON_TERMINAL):
                with self.lock:
                    if not self.stopped.is_set():
                        self.show()

        with self.lock:
            self.show()
        threading.Thread(target=run, daemon=True).start()

    def stop(self):
        with self.lock:
            self.stopped.set()
            self.clear()
            taken = duration(max(1, round(self.clock() - self.started)))
            self.write(f"{self.line()} after {taken}")


def stream(quiet):
    """Standard error if it is a terminal and may be written to, else None."""
    return sys.stderr if not quiet and sys.stderr.isatty() else None
