"""Statistics of claims: what is computed from rows before it is compared with a threshold.

Each takes rows and returns a frame of `seed` (0 where rows have none), `value` and `error` (a
standard error, or blank), one row a network or, where networks are compared, one row a seed.
"""

import numpy as np
import pandas as pd

from .tables import KEYS

GRADIENT_KEYS = [
    "network", "normalisation", "gates", "inputs", "input_correlation", "batch", "beta", "width",
    "networks", "quantity",
]  # fmt: skip


def compare(low, high, comparison, threshold):
    """(whether all of [low, high] passes, whether none of it does), elementwise."""
    low, high = pd.Series(low), pd.Series(high)
    if comparison == "between":
        return (low >= threshold[0]) & (high <= threshold[1]), (high < threshold[0]) | (
            low > threshold[1]
        )
    if comparison in ("<=", "<"):
        whole = high <= threshold if comparison == "<=" else high < threshold
        none = low > threshold if comparison == "<=" else low >= threshold
        return whole, none
    whole = low >= threshold if comparison == ">=" else low > threshold
    none = high < threshold if comparison == ">=" else high <= threshold
    return whole, none


def _frame(rows, value, error=np.nan):
    seed = rows["seed"] if "seed" in rows else pd.Series(0, index=rows.index)
    return pd.DataFrame({"seed": seed, "value": value, "error": error})


def column_value(rows, column):
    """The column itself; `measured` with its standard error."""
    return _frame(rows, rows[column], rows["standard_error"] if column == "measured" else np.nan)


def absolute(rows, column):
    """|column|."""
    return _frame(rows, rows[column].abs())


def ratio(rows, column, to):
    """column / to; of `measured` with its standard error."""
    error = rows["standard_error"] / rows[to].abs() if column == "measured" else np.nan
    return _frame(rows, rows[column] / rows[to], error)


def passes(rows, conditions):
    """1 where a network meets all conditions on its columns, 0 where it misses one, blank where
    that is undefined.
    """
    verdict = pd.Series(1.0, index=rows.index)
    missed = pd.Series(False, index=rows.index)
    for condition in conditions:
        cells = rows[condition["statistic"]]
        good, _ = compare(cells, cells, condition["comparison"], condition["threshold"])
        verdict = verdict.where(cells.notna())
        missed |= cells.notna() & ~good
    return _frame(rows, verdict.mask(missed, 0.0))


def log_log_slope(rows, column, against):
    """Exponent of column ~ against^exponent by least squares, for each seed with three or more
    values of `against`.
    """
    return _per_group(rows, against, lambda x, y: np.polyfit(np.log(x), np.log(y), 1)[0], column)


def log_log_r2(rows, column, against):
    """R2 of log_log_slope's line."""
    return _per_group(
        rows, against, lambda x, y: np.corrcoef(np.log(x), np.log(y))[0, 1] ** 2, column
    )


def difference(rows, column, against, start, end):
    """column where `against` is `end` minus where it is `start`, for each seed that has both."""

    def change(group):
        ends = [group.loc[group[against] == place, column] for place in (start, end)]
        return (ends[1].mean() - ends[0].mean(), np.nan) if all(len(e) for e in ends) else None

    return _grouped(rows, against, change)


def halvings(rows, column, against):
    """How often column halves per unit of `against`: minus the slope of log2 column, weighted by
    standard errors.
    """
    return _weighted_fall(rows, column, against, lambda x: x * np.log(2))


def exponent(rows, column, against):
    """p of column ~ against^-p: minus the slope of the logarithms, weighted by standard errors."""
    return _weighted_fall(rows, column, against, np.log)


def _weighted_fall(rows, column, against, scale):
    """Minus the slope of log column against scale(against), and its standard error."""

    def rate(group):
        if group[against].nunique() < 3 or (group[column] <= 0).any():
            return None
        x, y = scale(group[against].to_numpy(float)), np.log(group[column].to_numpy(float))
        weight = (group[column] / group["standard_error"]).to_numpy(float) ** 2
        centred = x - np.average(x, weights=weight)
        spread = (weight * centred**2).sum()
        return -(weight * centred * y).sum() / spread, spread**-0.5

    return _grouped(rows, against, rate)


def first_over_last(rows, column, against):
    """column where `against` is lowest over where it is highest, for each network."""

    def ratio_of_ends(group):
        ordered = group.sort_values(against)[column]
        return (ordered.iloc[0] / ordered.iloc[-1], np.nan) if len(group) > 1 else None

    return _grouped(rows, against, ratio_of_ends)


def _per_group(rows, against, fit, column):
    def value(group):
        if group[against].nunique() < 3 or (group[column] <= 0).any():
            return None
        return fit(group[against].to_numpy(float), group[column].to_numpy(float)), np.nan

    return _grouped(rows, against, value)


def _grouped(rows, against, value):
    """`value(group)`, a (value, error) pair or None, for each network's rows that differ in
    `against` alone.
    """
    keys = [key for key in (*KEYS, "seed", *GRADIENT_KEYS) if key in rows and key != against]
    found = []
    for _, group in rows.groupby(keys, dropna=False):
        pair = value(group)
        if pair is not None:
            found.append((group["seed"].iloc[0] if "seed" in group else 0, *pair))
    return pd.DataFrame(found, columns=["seed", "value", "error"], dtype=float)


# name: (function, arguments that name columns, other arguments, how it reads)
FUNCTIONS = {
    "absolute": (absolute, ("column",), (), "|{column}|"),
    "ratio": (ratio, ("column", "to"), (), "{column} / {to}"),
    "passes": (passes, (), ("conditions",), "share that passes {conditions}"),
    "log_log_slope": (
        log_log_slope,
        ("column", "against"),
        (),
        "exponent of {column} in {against}",
    ),
    "log_log_r2": (log_log_r2, ("column", "against"), (), "R2 of log {column} on log {against}"),
    "difference": (
        difference,
        ("column", "against"),
        ("start", "end"),
        "{column} at {against} {end} minus at {start}",
    ),
    "halvings": (halvings, ("column", "against"), (), "halvings of {column} per {against}"),
    "exponent": (exponent, ("column", "against"), (), "p of {column} ~ {against}^-p"),
    "first_over_last": (
        first_over_last,
        ("column", "against"),
        (),
        "{column} at the first {against} over the last",
    ),
}
