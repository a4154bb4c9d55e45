"""Whether what the papers claim holds here: each claim a test on a table's rows, judged seed by
seed.

An entry of claims.yaml names a table, its rows (a query), a statistic, a comparison and a
threshold, and may add conditions that must hold too. Rows are of each network's last epoch, unless
the query names `epoch`; networks that are diverged, dead or at chance have no scores, so they do
not count but are told in `status` (their accuracies, errors and losses are numbers like any other
and do count).

Verdict over seeds: `reproduced` if every seed passes, that is, all its rows meet every condition;
`not reproduced` if every seed fails; `inconclusive` otherwise, with fewer than two seeds, or if a
condition has no rows. Gradients at initialisation have no seeds but standard errors: an interval of
two of them to either side must lie wholly on the right side (reproduced) or wholly on the wrong one
(not reproduced) in every row.
"""

import ast
from difflib import get_close_matches

import numpy as np
import pandas as pd
import yaml

from .claim_statistics import FUNCTIONS, column_value, compare, passes
from .errors import UserError
from .tables import KEYS

TABLES = (
    "residual_alignment", "spectra_per_block", "degradation", "gradient_covariance",
    "unconstrained_jacobians", "gradient_covariance_networks", "layer_responses",
    "gradient_similarity", "effective_rank", "coactivation", "path_counts", "path_lengths",
    "linear_regions",
)  # fmt: skip
COLUMNS = [
    "claim", "paper", "statement", "statistic", "value", "low", "high", "threshold", "origin",
    "verdict", "status",
]  # fmt: skip
ENTRY = (
    "claim",
    "paper",
    "statement",
    "table",
    "rows",
    "statistic",
    "comparison",
    "threshold",
    "origin",
)
CONDITION = ("statistic", "comparison", "threshold")
COMPARISONS = ("<=", ">=", "<", ">", "between")
ORIGINS = ("theory", "paper", "pilot")
DEFINED = ("ok", "too_few_points")
# Numbers of the training itself, which networks without scores have as well.
OUTCOMES = {
    "train_accuracy", "test_accuracy", "train_error", "test_error", "train_loss",
    "running_train_loss", "train_loss_bn_reestimated",
}  # fmt: skip
OUTCOME_STATUSES = (*DEFINED, "chance_accuracy", "dead")
QUERY_PARTS = (
    ast.Expression, ast.BoolOp, ast.boolop, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop,
    ast.Compare, ast.cmpop, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple,
)  # fmt: skip


# ---- reading and checking


def read_claims(path):
    """Entries of a claims file, checked.

    Raises:
        UserError: no YAML list, an unknown or missing key, function, comparison, origin or table, a
        bad threshold, or two claims of one name; the message names the claim and the nearest valid
        choice.
    """
    try:
        with open(path, encoding="utf-8") as file:
            entries = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{path}: expected a list of claims")
    seen = set()
    for number, entry in enumerate(entries, start=1):
        name = f"claim '{entry.get('claim', f'number {number}')}'"
        _check_keys(name, entry, ENTRY, (*ENTRY, "conditions"))
        if entry["claim"] in seen:
            raise UserError(f"{name}: there are two of this name")
        seen.add(entry["claim"])
        _check_choice(name, "table", entry["table"], TABLES)
        _check_choice(name, "origin", entry["origin"], ORIGINS)
        _check_condition(name, entry)
        for condition in _further(name, entry):
            _check_keys(name, condition, CONDITION, (*CONDITION, "rows"))
            _check_condition(name, condition)
    return entries


def _further(name, entry, key="conditions"):
    conditions = entry.get(key) or []
    if not isinstance(conditions, list) or not all(isinstance(c, dict) for c in conditions):
        raise UserError(f"{name}: {key} is {conditions!r}; expected a list of conditions")
    return conditions


def _check_keys(name, mapping, needed, known):
    for key in mapping:
        if key not in known:
            raise UserError(f"{name}: unknown key '{key}'; nearest is '{_nearest(key, known)}'")
    for key in needed:
        if mapping.get(key) is None:
            raise UserError(f"{name}: '{key}' is missing")


def _check_choice(name, key, value, choices):
    if value not in choices:
        nearest = _nearest(value, choices)
        raise UserError(
            f"{name}: unknown {key} '{value}'; nearest is '{nearest}' (of {', '.join(choices)})"
        )


def _check_condition(name, condition):
    _check_choice(name, "comparison", condition["comparison"], COMPARISONS)
    threshold = condition["threshold"]
    if condition["comparison"] == "between":
        pair = (
            isinstance(threshold, list) and len(threshold) == 2 and all(map(_is_number, threshold))
        )
        if not pair or threshold[0] > threshold[1]:
            raise UserError(f"{name}: threshold is {threshold!r}; 'between' takes [low, high]")
    elif not _is_number(threshold):
        raise UserError(f"{name}: threshold is {threshold!r}; expected a number")
    statistic = condition["statistic"]
    if isinstance(statistic, str):
        return
    if not isinstance(statistic, dict) or "function" not in statistic:
        raise UserError(
            f"{name}: statistic is {statistic!r}; expected a column or {{function: ..., ...}}"
        )
    _check_choice(name, "function", statistic["function"], tuple(FUNCTIONS))
    _, columns, others, _ = FUNCTIONS[statistic["function"]]
    needed = ("function", *columns, *others)
    _check_keys(name, statistic, needed, (*needed, "label"))
    for inner in _further(name, statistic):
        _check_keys(name, inner, CONDITION, CONDITION)
        _check_condition(name, inner)
        if not isinstance(inner["statistic"], str):
            raise UserError(f"{name}: a condition within 'passes' takes a column as its statistic")


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and np.isfinite(value)


def _nearest(word, choices):
    return get_close_matches(str(word), [str(c) for c in choices], n=1, cutoff=0)[0]


def _columns(statistic):
    """The columns a statistic reads."""
    if isinstance(statistic, str):
        return [statistic]
    _, columns, *_ = FUNCTIONS[statistic["function"]]
    return [statistic[c] for c in columns] + [
        c["statistic"] for c in statistic.get("conditions", [])
    ]


def select(name, table, query):
    """The rows of `table` that meet `query`.

    Raises:
        UserError: the query is malformed or names a column that the table does not have.
    """
    try:
        tree = ast.parse(str(query).strip(), mode="eval")
    except SyntaxError as error:
        raise UserError(f"{name}: malformed query '{query}': {error.msg}") from error
    for part in ast.walk(tree):
        if not isinstance(part, QUERY_PARTS):
            raise UserError(
                f"{name}: malformed query '{query}': "
                "compare columns with values, join by and, or, not"
            )
        if isinstance(part, ast.Name):
            _check_column(name, part.id, table)
    try:
        chosen = table.eval(" ".join(str(query).split()), engine="python")
    except Exception as error:  # pandas raises what the comparison raised
        raise UserError(
            f"{name}: malformed query '{query}': {str(error).splitlines()[0]}"
        ) from error
    if not isinstance(chosen, pd.Series) or chosen.dtype != bool:
        raise UserError(f"{name}: malformed query '{query}': it is no comparison")
    rows = table[chosen]
    names = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}
    if "epoch" in rows and "epoch" not in names:
        network = [key for key in (*KEYS, "seed") if key in table]
        last = table.groupby(network, dropna=False)["epoch"].transform("max")
        rows = rows[rows["epoch"] == last.loc[rows.index]]
    return rows


def _check_column(name, column, table):
    if column not in table.columns:
        raise UserError(
            f"{name}: unknown column '{column}'; nearest is '{_nearest(column, table.columns)}'"
        )


# ---- judging


def measure(name, rows, statistic):
    """(values of a statistic: seed, value, error; how many of `rows` have no value)."""
    columns = _columns(statistic)
    # Between two kinds of network, a difference is against a column of names.
    named = isinstance(statistic, dict) and isinstance(statistic.get("start"), str)
    for column in columns:
        _check_column(name, column, rows)
        if named and column == statistic["against"]:
            continue
        if not pd.api.types.is_numeric_dtype(rows[column]) and rows[column].notna().any():
            raise UserError(f"{name}: column '{column}' holds no numbers")
    if "measured" in rows:
        counted = rows[rows["status"] == "ok"]
    elif set(columns) <= OUTCOMES | set(KEYS):
        counted = rows[rows["status"].isin(OUTCOME_STATUSES)]
    else:
        counted = rows[rows["status"].isin((*DEFINED, "not_resolved"))]
    if isinstance(statistic, str):
        values = column_value(counted.dropna(subset=[statistic]), statistic)
    elif statistic["function"] == "passes":
        values = passes(counted, statistic["conditions"]).dropna(subset=["value"])
        return values, len(rows) - len(values)
    else:
        function, named, others, _ = FUNCTIONS[statistic["function"]]
        counted = counted.dropna(subset=columns)
        values = function(counted, **{key: statistic[key] for key in (*named, *others)})
        return values.dropna(subset=["value"]), len(rows) - len(counted)
    return values, len(rows) - len(values)


def judge(entry, table):
    """One row of claims.csv, a dict, for an entry of claims.yaml and its table (None: there is no
    such table).
    """
    name = f"claim '{entry['claim']}'"
    conditions = [entry, *(entry.get("conditions") or [])]
    row = {key: entry[key] for key in ("claim", "paper", "statement", "origin")}
    row["statement"] = " ".join(str(row["statement"]).split())
    row |= {
        "statistic": statistic_text(entry["statistic"]),
        "threshold": threshold_text(conditions),
    }
    row |= {"value": np.nan, "low": np.nan, "high": np.nan, "verdict": "inconclusive"}
    if table is None:
        return row | {"status": f"no rows: there is no table {entry['table']}"}
    rows = select(name, table, entry["rows"])
    measured, undefined = [], 0
    for condition in conditions:
        part = (
            select(name, rows, condition["rows"])
            if condition is not entry and "rows" in condition
            else rows
        )
        values, blank = measure(name, part, condition["statistic"])
        undefined = max(undefined, blank)
        margin = 2 * values["error"].fillna(0)
        values = values.assign(low=values["value"] - margin, high=values["value"] + margin)
        values["whole"], values["none"] = compare(
            values["low"], values["high"], condition["comparison"], condition["threshold"]
        )
        measured.append(values)
    main = measured[0]
    if len(main):
        row |= {"value": main["value"].mean(), "low": main["low"].min(), "high": main["high"].max()}
    for condition, values in zip(conditions, measured, strict=True):
        if not len(values):
            what = "" if condition is entry else f" for {statistic_text(condition['statistic'])}"
            return row | {"status": f"no rows{what}" + _undefined_text(undefined, len(rows), table)}
    judged = _over_errors(measured) if "measured" in table else _over_seeds(measured)
    verdict, notes = judged
    notes = notes + _undefined_text(undefined, len(rows), table).removeprefix("; ").split("; ")
    return row | {"verdict": verdict, "status": "; ".join(note for note in notes if note) or "ok"}


def _undefined_text(undefined, total, table):
    word = "not resolved" if "measured" in table else "undefined"
    return f"; {undefined} of {total} rows {word}" if undefined else ""


def _over_seeds(measured):
    """(verdict, notes): by seeds that have a value for every condition."""
    seeds = [set(values["seed"]) for values in measured]
    complete, known = set.intersection(*seeds), set.union(*seeds)
    notes = (
        [f"{len(known - complete)} of {len(known)} seeds incomplete"] if known - complete else []
    )
    good = {
        seed: all(values.loc[values["seed"] == seed, "whole"].all() for values in measured)
        for seed in complete
    }
    if len(complete) < 2:
        return "inconclusive", ["too few seeds", *notes]
    if all(good.values()):
        return "reproduced", notes
    return ("inconclusive" if any(good.values()) else "not reproduced"), notes


def _over_errors(measured):
    """(verdict, notes): by intervals of two standard errors to either side."""
    if all(values["whole"].all() for values in measured):
        return "reproduced", []
    return (
        "not reproduced" if any(values["none"].all() for values in measured) else "inconclusive"
    ), []


def statistic_text(statistic):
    """A statistic as text: a column, its label, or what the function does."""
    if isinstance(statistic, str):
        return statistic
    inner = " and ".join(_condition_text(c) for c in statistic.get("conditions", []))
    return statistic.get("label") or FUNCTIONS[statistic["function"]][-1].format(
        **statistic | {"conditions": inner}
    )


def _condition_text(condition):
    return f"{statistic_text(condition['statistic'])} {_comparison_text(condition)}"


def _comparison_text(condition):
    threshold = condition["threshold"]
    if condition["comparison"] == "between":
        return f"{threshold[0]:g} to {threshold[1]:g}"
    return f"{condition['comparison']} {threshold:g}"


def threshold_text(conditions):
    """The comparison, then the further conditions: for example `<= 1.1; alignment >= 0.5`."""
    first, *others = conditions
    texts = [_comparison_text(first)]
    texts += [_condition_text(c) + (f" where {c['rows']}" if "rows" in c else "") for c in others]
    return "; ".join(texts)


def evaluate(claims, tables):
    """claims.csv as a data frame.

    Args:
        claims: entries of read_claims. tables: {name: data frame}; a claim on an absent table is
        inconclusive.
    Raises:
        UserError: a query or statistic does not fit its table.
    """
    tables = {name: table.reset_index(drop=True) for name, table in tables.items()}
    return pd.DataFrame(
        [judge(entry, tables.get(entry["table"])) for entry in claims], columns=COLUMNS
    )
