"""Renew what README.md shows of the default study: small pictures in docs/gallery and the table of
claims."""

import argparse
import re
from pathlib import Path

from PIL import Image

from _command import run
from resnet_mechanisms.claims_page import measured
from resnet_mechanisms.tables import read

FIGURES = ("mechanisms", "ra_no_skip", "sg_theorems")
WIDTH = 1000  # pixels: sharp in a README at full width, and small in the repository


def markdown(claims):
    """The claims about networks of the study as a table: what is claimed, what was measured (range
    over seeds), the threshold, the verdict."""
    other = claims["status"].str.startswith("no rows").sum()
    claims = claims[~claims["status"].str.startswith("no rows")]
    lines = ["| claim | measured | threshold (origin) | verdict |", "|---|---|---|---|"]
    for row in claims.itertuples():
        cells = (row.statement, measured(row), f"{row.threshold} ({row.origin})", row.verdict)
        lines.append(f"| {' | '.join(cells)} |")
    if other:
        lines += ["", f"{other} more claims are about networks of the other studies."]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", default="results", type=Path)
    args = parser.parse_args()
    for name in FIGURES:
        picture = Image.open(args.results / "figures" / f"{name}.png").convert("RGB")
        height = round(picture.height * WIDTH / picture.width)
        picture = picture.resize((WIDTH, height), Image.LANCZOS)
        picture.quantize(128).save(f"docs/gallery/{name}.png", optimize=True)
    readme = Path("README.md")
    table = markdown(read([args.results / "tables" / "claims.csv"]))
    text = re.sub(
        r"(<!-- claims -->\n).*?(<!-- end of claims -->)",
        lambda match: f"{match[1]}{table}\n{match[2]}",
        readme.read_text(),
        flags=re.DOTALL,
    )
    readme.write_text(text)


if __name__ == "__main__":
    run(main)
