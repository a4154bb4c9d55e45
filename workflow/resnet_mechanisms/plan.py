"""What a study takes, before any of it runs: networks, jobs, hours, memory, disk.

The rates of `costs` are those of one core of a server processor. Where results/benchmarks holds
jobs of this study that have run, the ratio of what they took to what was expected corrects the
rest; so the plan gets better as the study goes on, and on another machine.
"""

import csv
import statistics
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from . import costs

# Rules with a job for each network: where their benchmarks lie, and what they are expected to cost.
PER_NETWORK = {
    "train": ("networks", costs.train_cost_in),
    "measure_spectra": ("spectra", costs.spectra_cost_in),
    "measure_gradients": ("gradients", costs.gradients_cost_in),
}
ON_GPU = {*PER_NETWORK, *(rule for rule, (*_, of) in costs.OF_STUDY.items() if of)}


@dataclass(frozen=True)
class Stage:
    """The jobs of one rule: their number, the networks they train or measure, seconds of a core in
    all and of the longest, megabytes of the largest, bytes on disk, whether on a GPU, and from how
    many measured jobs the seconds were corrected by which factor."""

    rule: str
    jobs: int
    networks: int
    seconds: float
    longest: float
    megabytes: float
    disk: float
    gpu: bool
    measured: int
    factor: float


def measured_seconds(path):
    """Seconds of the job whose benchmark file this is, or None where there is none."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return float(next(csv.DictReader(file, delimiter="\t"))["s"])
    except (OSError, StopIteration, KeyError, ValueError):
        return None


def stages(study, jobs, benchmarks, gpu=False):
    """A Stage for each rule.

    Args:
        study: config.Study. jobs: {rule: paths of its networks, or number of its jobs}, of rules
        that make something. benchmarks: folder results/benchmarks. gpu: whether jobs use one.
    """
    return [_stage(study, rule, of, Path(benchmarks), gpu) for rule, of in jobs.items()]


def _stage(study, rule, of, benchmarks, gpu):
    gpu = gpu and rule in ON_GPU
    if rule not in PER_NETWORK:
        seconds, megabytes = costs.study_cost(rule, study)
        disk = of * (300_000 if "figure" in rule else 200_000)
        if rule == "prepare_data":
            shapes = {name: costs.image_shape(entry, study.data_file(name))
                      for name, entry in study.datasets.items()}  # fmt: skip
            sizes = [shapes[name.rpartition("-c")[0]] for name in study.data_names]
            disk = sum(0.7 * 1.2 * c * h * w * n for c, h, w, n in sizes)
            seconds += disk / of / 1e8
        return Stage(rule, of, 0, of * seconds, seconds, megabytes, disk, gpu, 0, 1.0)
    folder, cost = PER_NETWORK[rule]
    expected = {path: cost(study, study.networks[path]) for path in of}
    found = {path: measured_seconds(benchmarks / folder / f"{path}.tsv") for path in of}
    ratios = [found[path] / expected[path][0] for path in of if found[path]]
    factor = statistics.median(ratios) if ratios else 1.0
    seconds = [found[path] or factor * expected[path][0] for path in of]
    return Stage(
        rule, len(of), sum(len(study.networks[path]["seeds"]) for path in of), sum(seconds),
        max(seconds), max(megabytes for _, megabytes in expected.values()),
        sum(_disk(study, rule, path) for path in of), gpu, len(ratios), factor,
    )  # fmt: skip


def _disk(study, rule, path):
    network = study.networks[path]
    recipe, shape = study.recipes[network["recipe"]], costs.shape_of(study, network)
    if rule == "train":
        return costs.disk_of_training(network, recipe, shape)
    if rule == "measure_spectra":
        inputs = study.measure["inputs"][costs.base(network["type"])]
        return costs.disk_of_spectra(network, recipe, network["classes"], shape, inputs)
    return 60_000 * len(network["seeds"]) * (2 + len(recipe["checkpoints"]))


def amount(value, units):
    """A number with three digits in the largest unit it fills; units: (name, size), growing."""
    name, size = max(
        (unit for unit in units if value >= unit[1]), default=units[0], key=itemgetter(1)
    )
    number = value / size
    return f"{number:,.0f} {name}" if number >= 100 else f"{number:.3g} {name}"


def duration(seconds):
    return amount(seconds, [("s", 1), ("min", 60), ("h", 3600), ("days", 24 * 3600)])


def size(count):
    return amount(count, [("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12)])


def text(found, configurations, cores):
    """The plan as lines of text. configurations: how many the study has. cores: of this machine."""
    rows = [("", "jobs", "networks", "core time", "longest job", "memory", "disk")]
    for stage in found:
        name = stage.rule + (" (GPU)" if stage.gpu else "")
        networks = str(stage.networks) if stage.networks else ""
        rows.append((
            name, str(stage.jobs), networks, duration(stage.seconds), duration(stage.longest),
            size(1e6 * stage.megabytes), size(stage.disk),
        ))  # fmt: skip
    total = sum(stage.seconds for stage in found)
    rows.append((
        "all", str(sum(stage.jobs for stage in found)), "", duration(total),
        duration(max((stage.longest for stage in found), default=0)),
        size(1e6 * max((stage.megabytes for stage in found), default=0)),
        size(sum(stage.disk for stage in found)),
    ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]
    trained = sum(stage.networks for stage in found if stage.rule == "train")
    on_gpu = sum(stage.seconds for stage in found if stage.gpu)
    lines = [
        f"{configurations} configurations, {trained} networks, "
        f"{sum(stage.jobs for stage in found)} jobs",
        f"{amount(total / 3600, [('core hours', 1)])}, {amount(on_gpu / 3600, [('GPU hours', 1)])}"
        + (" (if a GPU were no faster than a core: an upper bound)" if on_gpu else ""),
        f"about {duration(max(total / cores, max((s.longest for s in found), default=0)))} "
        f"on the {cores} cores of this machine",
        "",
        *lines,
        "",
    ]
    corrected = [stage for stage in found if stage.measured]
    for stage in corrected:
        lines.append(
            f"{stage.rule}: corrected by {stage.factor:.2f}, the median of measured over expected "
            f"of {stage.measured} jobs in results/benchmarks"
        )
    if not corrected:
        lines.append("Rates of one core of a server processor; results/benchmarks has no jobs yet")
    return "\n".join(lines)
