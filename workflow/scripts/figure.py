"""Draw one figure from its tables or arrays and write it as PDF and PNG."""

import argparse
import importlib
import json
import pkgutil
from difflib import get_close_matches
from pathlib import Path

from _command import run

# Modules of the package that are no figure.
HELPERS = {"style", "common", "panels", "sweeps", "dots"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="which figure: a module of resnet_mechanisms.figures")
    parser.add_argument("--input", type=Path, nargs="+", required=True, help="its files, in order")
    parser.add_argument(
        "--recipes", type=json.loads, help="values of recipes, by name, for figures that show them"
    )
    parser.add_argument("--pdf", type=Path, required=True, help="where the PDF goes")
    parser.add_argument("--png", type=Path, required=True, help="where the PNG goes (200 dpi)")
    arguments = parser.parse_args()

    from resnet_mechanisms import figures
    from resnet_mechanisms.errors import UserError

    known = sorted(m.name for m in pkgutil.iter_modules(figures.__path__) if m.name not in HELPERS)
    if arguments.name not in known:
        nearest = get_close_matches(arguments.name, known, n=1, cutoff=0) or known
        raise UserError(
            f"no figure '{arguments.name}'; nearest is '{nearest[0]}' (figures: {', '.join(known)})"
        )
    for path in arguments.input:
        if not path.is_file():
            raise UserError(f"{arguments.name}: no file {path}")

    from resnet_mechanisms.figures.style import save, use_style

    use_style()
    draw = importlib.import_module(f"resnet_mechanisms.figures.{arguments.name}").draw
    further = [] if arguments.recipes is None else [arguments.recipes]
    save(draw(arguments.input, *further), arguments.pdf, arguments.png)


if __name__ == "__main__":
    run(main)
