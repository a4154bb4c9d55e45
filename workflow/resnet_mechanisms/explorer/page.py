"""The explorer's page: template, style, script, plotly and the data in one file."""

import json
from importlib.resources import files as package_files
from pathlib import Path

from .. import files
from . import collect

# What the page holds at most, plotly and all; networks beyond it lie in files beside the page.
BUDGET = 25_000_000


def write(page, folder, networks, claims, budget=BUDGET):
    """Write the page and, for networks that do not fit in `budget` bytes, FOLDER/NUMBER.js.

    Args:
        page: path of the HTML file. folder: path of the folder beside it, made, and emptied.
        networks: iterable of (list entry, content) as `collect.read` returns them. claims: as
        `collect.claims_of` returns them, or a function of the paths of the networks.
    """
    page, folder = Path(page), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.js"):
        old.unlink()
    own = package_files(__package__)
    plotly = (package_files("plotly") / "package_data/plotly.min.js").read_text(encoding="utf-8")
    parts = {name: (own / f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    used = len(plotly) + sum(map(len, parts.values()))
    entries, inside, outside = [], [], 0
    for number, (entry, content) in enumerate(networks):
        entries.append(entry)
        text = collect.compressed(content)
        if used + len(text) <= budget:
            used += len(text)
            inside.append(f'<script id="data-{number}" type="text/plain">{text}</script>')
        else:
            outside += 1
            files.write_text(f'explorerData({number}, "{text}");\n', folder / f"{number}.js")
    claims = claims([entry["path"] for entry in entries]) if callable(claims) else claims
    index = {
        "networks": entries,
        "claims": claims,
        "splits": collect.SPLITS,
        "decades": collect.DECADES,
        "pair": collect.default_pair(entries),
        "folder": folder.name,
        "budget": _budget_text(used, budget, len(inside), outside, folder.name),
    }
    filled = (own / "page.html").read_text(encoding="utf-8")
    values = {
        "style": parts["css"],
        "plotly": plotly,
        # An end of the script within a text would end the element.
        "index": json.dumps(index, allow_nan=False).replace("</", "<\\/"),
        "data": "\n".join(inside),
        "script": parts["js"],
    }
    for name, value in values.items():
        filled = filled.replace("{{" + name + "}}", value, 1)
    files.write_text(filled, page)


def _budget_text(used, budget, inside, outside, folder):
    text = (
        f"This page holds {used / 1e6:.1f} MB of at most {budget / 1e6:.0f} MB, plotly and "
        f"{inside} networks, and needs no network and no server."
    )
    if outside:
        text += (
            f" {outside} more networks lie in the folder {folder} beside it and are read when they "
            "are chosen."
        )
    return text
