# What the other files share: the checked study, sources of commands, paths, costs, targets.

import ast
import difflib
import fcntl
import gc
import hashlib
import inspect
import json
import logging
import re
import shlex
import sys
import textwrap
import time
from functools import cache, partial
from pathlib import Path

from snakemake.io import strip_wildcard_constraints

# A plan of thousands of jobs is millions of objects, all of them in use: look for garbage less often.
gc.set_threshold(100_000, 50, 100)

WORKFLOW = Path(os.path.realpath(workflow.basedir), "workflow")
sys.path.insert(0, str(WORKFLOW))

from resnet_mechanisms import costs, gpus, grid_text, network_types, progress, provenance
from resnet_mechanisms.config import FIGURES, NETWORK_PATH, check_file, data_name, resolve
from resnet_mechanisms.errors import UserError


def stop(message):
    """End with one line; an exception would be shown with the place in the Snakefile it came from."""
    sys.exit(f"error: {message}")


def checked(check, value):
    """The result of a check, whose UserError ends the run."""
    try:
        return check(value)
    except UserError as error:
        stop(error)


if set("{}") & set(str(WORKFLOW)):
    stop("this folder has { or } in its name, which Snakemake takes for wildcards; rename it")

# Files given with --configfile are merged over config.yaml (the working directory's own or the one
# beside the Snakefile), unless one of them says `standalone: true`: then it is the whole study.
for file in workflow.overwrite_configfiles or []:
    checked(check_file, file)
if config.get("standalone") is not True:
    default = "config.yaml" if os.path.exists("config.yaml") else f"{workflow.basedir}/config.yaml"

    configfile: checked(check_file, default)


STUDY = checked(resolve, config)

# `python` in a command is the one that runs Snakemake, unless environments are deployed.
if not getattr(workflow.deployment_settings, "deployment_method", None):
    bin_folder = shlex.quote(str(Path(sys.executable).parent)).replace("{", "{{").replace("}", "}}")
    shell.prefix(f'set -euo pipefail; export PATH={bin_folder}:"$PATH"; ')


def one_of(names):
    return "|".join(map(re.escape, names)) or "(?!)"


NETWORKS = list(STUDY.networks)
MEASURED = [network for network in NETWORKS if STUDY.measured(network)]
EXTERNAL = STUDY.external_paths
FOLLOWED = STUDY.followed
DATA = STUDY.data_names
OF_RANK = STUDY.gradients["effective_rank"]


# By its form: a list of ten thousand paths takes minutes to match. check_targets() knows the list.
wildcard_constraints:
    network=NETWORK_PATH,
    data=one_of(DATA),
    external=one_of(STUDY.external),


# --- Code. Jobs have a digest of their command and of the library modules it imports among their
# parameters, so that an edit reruns what uses the module and nothing else, and touching a file reruns
# nothing.


def command(name):
    """Path of a command, relative to the working directory."""
    return os.path.relpath(WORKFLOW / "scripts" / name)


@cache
def code_of(name, *modules):
    """Digest of a command, further library modules, and all they import from the library, directly
    or not."""
    todo = [WORKFLOW / "scripts" / name]
    todo += [WORKFLOW / "resnet_mechanisms" / f"{module}.py" for module in modules]
    found = set()
    while todo:
        file = todo.pop()
        if file not in found and file.is_file():
            found.add(file)
            todo += [] if is_empty(file) else imported(file)
    digest = hashlib.sha256()
    for file in sorted(found):
        if not is_empty(file):
            digest.update(str(file.relative_to(WORKFLOW)).encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def digest_of(pattern):
    """Digest of files in workflow/ that are no Python."""
    files = sorted(file for file in WORKFLOW.glob(pattern) if file.suffix != ".py")
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


@cache
def parsed(file):
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except SyntaxError as error:
        stop(f"{os.path.relpath(file)}, line {error.lineno}: {error.msg}")


def is_empty(file):
    """A package file that only holds a docstring, constants and what it imports when asked: nothing
    depends on it."""
    return file.name == "__init__.py" and all(
        isinstance(node, ast.Expr | ast.Assign)
        or (isinstance(node, ast.FunctionDef) and node.name == "__getattr__")
        for node in parsed(file).body
    )


@cache
def imported(file):
    """The files, in workflow/ or beside the command, that may be what a file imports."""
    names, found = set(), set()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = file.relative_to(WORKFLOW).parts[: -node.level] if node.level else ()
            base = ".".join([*package, *filter(None, [node.module])])
            names.update([base, *(f"{base}.{alias.name}" for alias in node.names)])
    for name in names:
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            for root in (WORKFLOW, WORKFLOW / "scripts"):
                path = root.joinpath(*parts[:depth])
                found |= {path.with_suffix(".py"), path / "__init__.py"}
    return {file for file in found if file.is_file()}


# --- Parameters of jobs: text, so that equal means equal, and no more than the job depends on.


def to_json(value):
    return json.dumps(value, sort_keys=True)


def network_json(wildcards):
    return to_json(STUDY.networks[wildcards.network])


def recipe_json(wildcards):
    return to_json(STUDY.recipes[STUDY.networks[wildcards.network]["recipe"]])


def measure_json(wildcards):
    kind = network_types.base(STUDY.networks[wildcards.network]["type"])
    return to_json({**STUDY.measure, "inputs": {kind: STUDY.measure["inputs"][kind]}})


def data_entry(wildcards):
    return STUDY.datasets[wildcards.data.rpartition("-c")[0]]


def data_json(wildcards):
    """All of an entry but whether it may be downloaded, which does not change the images."""
    entry = data_entry(wildcards).items()
    return to_json({key: value for key, value in entry if key != "download"})


def data_of(wildcards):
    return f"results/data/{data_name(STUDY.networks[wildcards.network])}.npz"


def files_of_external(name):
    """The files that an entry of `external` names: weights, and the Python file that builds it."""
    entry = STUDY.external[name]
    named = [entry["model"].rpartition(":")[0], entry["weights"]]
    return [
        file for file in named if file and file.endswith((".py", ".pt", ".pth", ".safetensors"))
    ]


def of_figure(name, wildcards):
    """What a figure of the study is drawn from."""
    return of_networks(FIGURE_INPUTS[name], STUDY.figures[name]) or FIGURE_INPUTS[name]


def about_figure(name):
    """How a figure's module begins, without what stands in parentheses; a label as wide as the
    report's menu."""
    words = ast.get_docstring(parsed(WORKFLOW / "resnet_mechanisms/figures" / f"{name}.py"))
    words = re.sub(r"\s*\([^)]*\)", "", " ".join(words.split()))
    return textwrap.shorten(re.split(r"\.\s|\.$|;", words)[0], 60, placeholder=" ...")


def name_of(output):
    """A file of a rule as the study names it, also where a profile keeps it in a storage."""
    if output.is_storage:
        prefix = workflow.storage_settings.default_storage_prefix
        output = os.path.relpath(output.storage_object.query, prefix)
    return strip_wildcard_constraints(output)


def made_by(rule):
    """The names of the files that a rule, given as rules.NAME, makes."""
    return [name_of(output) for output in rule.output]


def recipe_option(networks, keys):
    """The option that tells a command these values of the networks' recipes; nothing without keys."""
    if not keys:
        return []
    names = {STUDY.networks[network]["recipe"] for network in networks}
    values = {name: {key: STUDY.recipes[name][key] for key in keys} for name in names}
    return ["--recipes", to_json(values)]


def of_networks(paths, networks=NETWORKS):
    """The file with this path under every network; of several paths, all of one, then the next."""
    paths = [paths] if isinstance(paths, str) else paths
    return [path.format(network=network) for path in paths for network in networks]


# --- Costs: which jobs to start first, and what to ask a cluster for.


@cache
def train_cost(network):
    """(seconds, megabytes) that training a network from all its seeds takes."""
    return costs.train_cost_in(STUDY, STUDY.networks[network])


@cache
def spectra_cost(network):
    """(seconds, megabytes) that measuring one network takes."""
    return costs.spectra_cost_in(STUDY, STUDY.networks[network])


@cache
def gradients_cost(network):
    """(seconds, megabytes) that measuring gradients of one network takes."""
    return costs.gradients_cost_in(STUDY, STUDY.networks[network])


def priority_of(cost):
    return lambda wildcards: int(cost(wildcards.network)[0])


def minutes_of(cost):
    """The runtime to ask for: twice the estimate and what a node needs to start; at a second attempt
    twice as much."""
    return lambda wildcards, attempt: attempt * (5 + int(cost(wildcards.network)[0]) // 30)


def megabytes_of(cost):
    """The memory to ask for: a quarter more than the estimate; at a second attempt twice as much."""
    return lambda wildcards, attempt: attempt * int(1.25 * cost(wildcards.network)[1])


def megabytes(first):
    return lambda wildcards, attempt: attempt * first


# --- Devices. Not parameters: changing them reruns nothing. A profile may ask for GPUs that the machine
# Snakemake runs on does not have: set-resources: train: {gpu: 1}.

GPUS = 0 if STUDY.device == "cpu" else len(gpus.visible())
ON_DEVICE = {
    "gpu": 1 if GPUS or STUDY.device == "cuda" else 0,
    "device": f"--device {STUDY.device} --jobs-per-gpu {STUDY.jobs_per_gpu}",
}
if GPUS and workflow.local_exec and "gpu" not in workflow.global_resources:
    workflow.register_resource("gpu", GPUS * STUDY.jobs_per_gpu)
# The options that a command on a device takes.
DEVICE_OPTIONS = " --threads {threads} --gpu {resources.gpu} {resources.device} "


# --- One study, one run: `make` asks who holds this file (see scripts/run_study.py).


def hold_study():
    """Keep results/.running locked for the life of this process; it says which process that is."""
    global held
    os.makedirs("results", exist_ok=True)
    held = open("results/.running", "a+", encoding="utf-8")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # `make` has locked it for this process, or the file system has no locks
    held.truncate(0)
    held.write(f"{os.getpid()}\n")
    held.flush()


# --- The record of the run: results/provenance.json.

STARTED = time.time()


def record_run(outcome):
    """What runs or has run here, and how it ended; not of a plan, which makes nothing."""
    if TARGETS != ["plan"]:
        provenance.write_run(
            "results",
            outcome=outcome,
            config=config,
            targets=TARGETS or ["all"],
            cores=workflow.resource_settings.cores,
            started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(STARTED)),
            seconds=round(time.time() - STARTED, 1),
        )


# --- How far the run is: results/logs/progress.log, and a line on the terminal.

PER_NETWORK = {
    "train": ("training", train_cost),
    "measure_spectra": ("measuring", spectra_cost),
    "measure_gradients": ("gradients of", gradients_cost),
}


def progress_job(job):
    """A job of the plan as progress.Job."""
    log = job.log[0] if job.log else None
    if job.name in PER_NETWORK:
        word, cost = PER_NETWORK[job.name]
        network = job.wildcards.network
        return progress.Job(f"{word} {network}", job.name, cost(network)[0], log)
    name = job.name if job.name in costs.OF_STUDY else "figures"
    words = " ".join([job.name.removesuffix("_of_network"), *map(str, job.wildcards)])
    return progress.Job(words, name, costs.study_cost(name, STUDY)[0], log)


class OnProgress(logging.Handler):
    """Tells a progress.Progress what Snakemake says; before others, so that it can clear its line."""

    def __init__(self, watched):
        super().__init__()
        self.watched = watched

    def emit(self, record):
        self.watched.clear()
        event = getattr(record, "event", None)
        if event == "job_started":
            for number in record.jobs:
                self.watched.begin(number)
        elif event == "job_finished":
            self.watched.finish(record.job_id)
        elif event == "job_error":
            self.watched.fail(record.jobid)


def watch_run():
    """Follow the run from its start on."""
    global watcher
    if not workflow.is_main_process or TARGETS == ["plan"]:
        return
    made = [job for job in workflow.dag.needrun_jobs() if job.rule.shellcmd is not None]
    quiet = {q.name for q in workflow.output_settings.quiet or ()} & {"ALL", "PROGRESS"}
    stream = progress.stream(quiet)

    def write(line):
        os.makedirs("results/logs", exist_ok=True)
        with open("results/logs/progress.log", "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        if not quiet and stream is None:
            print(f"progress: {line}", file=sys.stderr, flush=True)

    settings = workflow.resource_settings
    together = settings.nodes or settings.cores or 1
    jobs = {workflow.dag.jobid(job): progress_job(job) for job in made}
    watcher = OnProgress(progress.Progress(jobs, together, write, stream))
    logger.handlers.insert(0, watcher)
    watcher.watched.keep_showing()


watcher = None


def unwatch_run():
    if watcher is not None:
        logger.removeHandler(watcher)
        watcher.watched.stop()


# --- The report: its categories, in the order of their numbers. One label a result: of two Snakemake
# takes the second for a switch between the results where there are two.

CLAIMS = "1. Claims"
PAPERS = {
    "mechanisms": "2. All three papers",
    "ra": "3. Residual Alignment (Li & Papyan 2023)",
    "neural": "3. Residual Alignment (Li & Papyan 2023)",
    "unconstrained": "3. Residual Alignment (Li & Papyan 2023)",
    "sg": "4. Shattered gradients (Balduzzi et al. 2017)",
    "he": "5. Degradation (He et al. 2016)",
    "claims": CLAIMS,
}


def category_of(name):
    return next(PAPERS[start] for start in PAPERS if name.startswith(start))


# --- Targets.


def all_outputs():
    """Every file made for this study; where two rules share a pattern, more than once."""
    tables = [*TABLES, *FINISHED_TABLES]
    values_of = {"network": NETWORKS, "data": DATA, "table": tables, "external": STUDY.external}
    networks_of = {"measure_spectra": MEASURED}
    networks_of |= {f"{name}_of_network": MEASURED + EXTERNAL for name in OF_ONE_NETWORK}
    for each, pattern in ((each, o) for each in workflow.rules for o in each.output):
        pattern = name_of(pattern)
        values_of["network"] = networks_of.get(each.name, NETWORKS)
        for wildcard, values in values_of.items():
            if f"{{{wildcard}}}" in pattern:
                yield from (pattern.replace(f"{{{wildcard}}}", value) for value in values)
                break
        else:
            yield pattern


def requested_targets():
    """What the command line asks for; nothing where that cannot be told."""
    # Snakemake only tells the workflow after it has been read, so look at who called for it.
    frame = inspect.currentframe()
    while frame is not None and "dag_settings" not in frame.f_locals:
        frame = frame.f_back
    settings = frame and frame.f_locals["dag_settings"]
    if settings is None or not workflow.is_main_process:
        return []
    return sorted({*settings.targets, *settings.forcerun, *settings.until, *settings.omit_from})


TARGETS = requested_targets()


def check_targets():
    """A target that nothing makes ends the run in one line that says which are nearest."""
    names = [each.name for each in workflow.rules]
    files = {target: os.path.relpath(target) for target in TARGETS}
    files = {target: file for target, file in files.items() if target not in names}
    made = set(all_outputs()) if files else ()
    for target, file in files.items():
        if file not in made and not os.path.exists(file):
            known = [each.name for each in workflow.rules if not each.has_wildcards()]
            nearest = difflib.get_close_matches(file, [*known, *sorted(made)], n=3, cutoff=0.4)
            stop(f"nothing makes {target}; nearest targets: {', '.join(nearest or ['all'])}")
