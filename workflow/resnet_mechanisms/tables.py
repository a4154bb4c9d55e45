"""Reading and writing the CSV tables: one row an observation, an empty cell where something is
undefined."""

import numpy as np
import pandas as pd

from . import files
from .errors import UserError

KEYS = ["dataset", "classes", "type", "skip", "depth", "width", "recipe"]
HISTORY = [
    "seed", "epoch", "learning_rate", "running_train_loss", "train_loss", "train_accuracy",
    "test_loss", "test_accuracy", "train_loss_bn_reestimated", "parameters", "multiplications",
    "status",
]  # fmt: skip


def write(frame, path, config=None):
    """Write a DataFrame as CSV, numbers with six digits; a configuration's keys come first where
    one is given.

    Raises ValueError rather than write an infinite number.
    """
    if config is not None:
        frame = pd.concat(
            [pd.DataFrame({key: [config[key]] * len(frame) for key in KEYS}), frame], axis=1
        )
    numbers = frame.select_dtypes("number")
    if np.isinf(numbers.to_numpy(dtype=float)).any():
        raise ValueError(
            f"{path}: infinite values in {list(numbers.columns[np.isinf(numbers).any()])}"
        )
    with files.atomically(path) as partial:
        frame.to_csv(partial, index=False, float_format="%.6g")


def read(paths):
    """The rows of one or several CSV files, in order. Raises UserError for a file that is missing
    or no table."""
    frames = []
    for path in paths:
        try:
            frames.append(pd.read_csv(path, keep_default_na=False, na_values=[""]))
        except (OSError, ValueError) as error:
            raise UserError(f"table {path}: cannot be read ({error})") from None
        if list(frames[-1].columns) != list(frames[0].columns):
            raise UserError(
                f"table {path}: its columns differ from those of {paths[0]}; "
                "one of them is damaged: delete it and run again"
            )
    frames = [frame for frame in frames if len(frame)] or frames[:1]
    return pd.concat(frames, ignore_index=True)


def degradation(history):
    """degradation.csv from the rows of history.csv: errors in [0, 1], the running and the
    re-evaluated losses, and the network's size (`networks.size_of`)."""
    table = history[[*KEYS, "seed", "epoch"]].copy()
    for name in ("running_train_loss", "train_loss", "train_loss_bn_reestimated"):
        table[name] = history[name]
    table["train_error"] = 1 - history.train_accuracy
    table["test_error"] = 1 - history.test_accuracy
    for name in ("parameters", "multiplications"):
        table[name] = history[name]
    table["status"] = history.status
    return table


def read_spectra(path):
    """One network's spectra.nc as an xarray Dataset.

    Raises:
        UserError: the file is missing, no netCDF file, or lacks what the figures need.
    """
    import xarray as xr

    try:
        network = xr.load_dataset(files.check(path), engine="h5netcdf")
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"cannot read {path} as a netCDF file: {_first_line(error)}") from error
    missing = [
        n
        for n in ("singular_values", "trajectory", "alignment_matrix", "status")
        if n not in network
    ]
    missing += [name for name in KEYS if name not in network.attrs]
    if missing:
        raise UserError(f"{path} is no spectra file: it has no {missing[0]}")
    return network


def _first_line(error):
    return (str(error) or type(error).__name__).splitlines()[0]
