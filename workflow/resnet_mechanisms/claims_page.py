"""The claims and their verdicts as one page of HTML, for the report."""

from html import escape

import pandas as pd

STYLE = """
body { font: 14px/1.45 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #1c2126; margin: 16px; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 5px 10px 5px 0; border-bottom: 1px solid #dfe3e8; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
h2 { font-size: 16px; margin: 22px 0 4px; }
small { color: #56606b; }
.verdict { display: inline-block; white-space: nowrap; border-radius: 6px; padding: 1px 8px; font-weight: 600; }
.reproduced { background: #bfe3d6; } .not-reproduced { background: #f6c9b0; }
.inconclusive { background: #e4e4e4; }
@media (max-width: 760px) {
  thead { display: none; } tr { display: block; padding: 8px 0; border-bottom: 1px solid #dfe3e8; }
  td { display: block; border: 0; padding: 1px 0; }
  td.number::before { content: "measured "; color: #56606b; }
  td.number + td::before { content: "passes if "; color: #56606b; }
}
"""  # noqa: E501
MARKS = {"reproduced": "\N{CHECK MARK}", "not reproduced": "\N{BALLOT X}", "inconclusive": "?"}


def measured(row):
    """`1.01 [1, 1.02]`: the value and its range."""
    if pd.isna(row.value):
        return "undefined"
    text = f"{row.value:.3g}"
    if pd.notna(row.low) and pd.notna(row.high):
        text += f" [{row.low:.3g}, {row.high:.3g}]"
    return text


def page(claims):
    """HTML of a claims.csv (DataFrame), a table each paper; what the study has no rows for comes
    last in each."""
    counts = claims.verdict.value_counts()
    said = ", ".join(f"{counts.get(verdict, 0)} {verdict}" for verdict in MARKS)
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Claims</title>',
        f"<style>{STYLE}</style></head><body><p>{len(claims)} claims: {said}. Measured: mean, and",
        "range over networks and seeds, of gradients widened by two standard errors. A claim that "
        "does not hold is a finding.</p>",
    ]
    for paper, rows in claims.groupby("paper", sort=False):
        absent = rows.status.str.startswith("no rows")
        parts.append(
            f"<h2>{escape(paper)}</h2><table><thead><tr><th>verdict</th><th>claim</th>"
            "<th>measured</th><th>passes if (origin)</th></tr></thead><tbody>"
        )
        for row in pd.concat([rows[~absent], rows[absent]]).itertuples():
            note = "" if row.status == "ok" else f"<br><small>{escape(row.status)}</small>"
            parts.append(
                f'<tr><td><span class="verdict {row.verdict.replace(" ", "-")}">'
                f"{MARKS[row.verdict]} {row.verdict}</span></td>"
                f"<td>{escape(row.statement)}<br><small>{escape(row.claim)}: "
                f"{escape(row.statistic)}</small>{note}</td>"
                f'<td class="number">{measured(row)}</td>'
                f"<td>{escape(row.threshold)} ({row.origin})</td></tr>"
            )
        parts.append("</tbody></table>")
    return "\n".join([*parts, "</body></html>", ""])
