# What the other files share: the checked study, sources of commands, paths, costs, targets.

import ast
import difflib
import fcntl
import functools
import inspect
import json
import re
import shlex
import sys
from pathlib import Path

from snakemake.io import strip_wildcard_constraints

WORKFLOW = Path(os.path.realpath(workflow.basedir), "workflow")
sys.path.insert(0, str(WORKFLOW))

from resnet_mechanisms import costs, network_types
from resnet_mechanisms.config import FIGURES, check_file, data_name, resolve
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
DATA = list(dict.fromkeys(data_name(network) for network in STUDY.networks.values()))
OF_RANK = STUDY.gradients["effective_rank"]
if "sg5_effective_rank" in STUDY.figures and data_name(OF_RANK) not in DATA:
    DATA.append(data_name(OF_RANK))


wildcard_constraints:
    network=one_of(NETWORKS),
    data=one_of(DATA),


# --- Sources. Commands list the library modules they import as inputs, so that an edit reruns what
# uses the module and nothing else, and touching a file reruns nothing.


def command(name):
    """Path of a command, relative to the working directory."""
    return os.path.relpath(WORKFLOW / "scripts" / name)


@functools.cache
def sources(name, *modules):
    """A command, further library modules, and all they import from the library, directly or not."""
    todo = [WORKFLOW / "scripts" / name]
    todo += [WORKFLOW / "resnet_mechanisms" / f"{module}.py" for module in modules]
    found = set()
    while todo:
        file = todo.pop()
        if file not in found and file.is_file():
            found.add(file)
            todo += imported(file)
    return [os.path.relpath(file) for file in sorted(found) if not is_empty(file)]


@functools.cache
def parsed(file):
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except SyntaxError as error:
        stop(f"{os.path.relpath(file)}, line {error.lineno}: {error.msg}")


def is_empty(file):
    """A package file that only holds a docstring and constants: nothing depends on it."""
    return file.name == "__init__.py" and all(
        isinstance(node, ast.Expr | ast.Assign) for node in parsed(file).body
    )


def imported(file):
    """The files, in workflow/ or beside the command, that may be what a file imports."""
    names = set()
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
                yield from (path.with_suffix(".py"), path / "__init__.py")


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


# --- Rough costs: which jobs to start first, and what to ask a cluster for.


def train_seconds(wildcards):
    network = STUDY.networks[wildcards.network]
    recipe = STUDY.recipes[network["recipe"]]
    shape = costs.shape_of(STUDY, network)
    images = shape[3]
    steps = recipe["steps"]
    if steps is None:
        steps = recipe["epochs"] * images / recipe["batch_size"]
    products = sum(flops / 2 for _, _, flops, _ in costs.blocks_of(network, shape))
    step = 0.001 * network["depth"] + 2e-10 * recipe["batch_size"] * products
    return int(10 + len(network["seeds"]) * steps * step)


def spectra_cost(wildcards):
    """(seconds, megabytes) that measuring one network takes."""
    return costs.spectra_cost_in(STUDY, STUDY.networks[wildcards.network])


def spectra_seconds(wildcards):
    return int(spectra_cost(wildcards)[0])


def spectra_minutes(wildcards, attempt):
    """Twice the estimate, and what a node needs to start."""
    return attempt * (5 + spectra_seconds(wildcards) // 30)


def spectra_megabytes(wildcards, attempt):
    return attempt * int(1.25 * spectra_cost(wildcards)[1])


def minutes(seconds):
    """The runtime to ask for: ten times the estimate, twice as much at a second attempt."""
    return lambda wildcards, attempt: attempt * (10 + seconds(wildcards) // 6)


def megabytes(first):
    return lambda wildcards, attempt: attempt * first


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


# --- Targets.


def all_outputs():
    """Every file made for this study; where two rules share a pattern, more than once."""
    tables = [*TABLES, *FINISHED_TABLES]
    wildcards = ("network", NETWORKS), ("data", DATA), ("table", tables)
    for pattern in (strip_wildcard_constraints(o) for each in workflow.rules for o in each.output):
        for wildcard, values in wildcards:
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


def check_targets():
    """A target that nothing makes ends the run in one line that says which are nearest."""
    names = [each.name for each in workflow.rules]
    for target in requested_targets():
        file = os.path.relpath(target)
        if target in names or os.path.exists(file):
            continue
        if not any(each.is_producer(file) for each in workflow.rules):
            known = [each.name for each in workflow.rules if not each.has_wildcards()]
            candidates = dict.fromkeys([*known, *all_outputs()])
            nearest = difflib.get_close_matches(file, candidates, n=3, cutoff=0.4)
            stop(f"nothing makes {target}; nearest targets: {', '.join(nearest or ['all'])}")
