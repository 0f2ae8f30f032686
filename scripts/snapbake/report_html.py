"""The frame of the report's pages: one self-contained HTML file each, readable light and dark."""

from html import escape

# All of it hangs on .snapbake, because the verdict is also shown inside Snakemake's own page, which
# is always light; only a page of its own (.page) follows the reader's choice of dark.
_STYLE = """\
.snapbake {
  --text: #1c2733; --soft: #5a6875; --line: #d5dce3; --shade: #f3f6f9; --page: #ffffff;
  --good: #0b6b3a; --good-shade: #e3f4ea; --bad: #b3141d; --bad-shade: #fdeaea; --mark: #ffe08a;
  box-sizing: border-box; max-width: 80rem; margin: 0 auto; padding: 1rem 1.25rem 2rem;
  color: var(--text); background: var(--page);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", Arial, sans-serif;
}
body.page { margin: 0; background: #ffffff; }
@media (prefers-color-scheme: dark) {
  body.page { background: #12181f; }
  body.page .snapbake {
    --text: #e3e9ef; --soft: #9fadba; --line: #36424e; --shade: #1c252f; --page: #12181f;
    --good: #6fd79b; --good-shade: #143324; --bad: #ff8f8f; --bad-shade: #411d20; --mark: #6b5200;
  }
}
.snapbake h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .5rem; font-weight: 650; }
.snapbake h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; font-weight: 650; }
.snapbake h3 { font-size: 1rem; margin: 0; font-weight: 650; }
.snapbake p, .snapbake ul { margin: .5rem 0; max-width: 60rem; }
.snapbake ul { padding-left: 1.25rem; list-style: disc; }
.snapbake code { font: .9em ui-monospace, "DejaVu Sans Mono", Menlo, monospace;
  overflow-wrap: anywhere; }
.snapbake .soft { color: var(--soft); font-weight: normal; }
.snapbake small { font-size: .85em; }
.snapbake .good { color: var(--good); font-weight: 650; }
.snapbake .bad { color: var(--bad); font-weight: 650; }
.snapbake .banner { border-left: .4rem solid; border-radius: .35rem; padding: .75rem 1rem; }
.snapbake .banner.good { background: var(--good-shade); }
.snapbake .banner.bad { background: var(--bad-shade); }
.snapbake .banner p { color: var(--text); font-weight: normal; margin-bottom: 0; }
.snapbake .wide { overflow-x: auto; margin: .75rem 0; }
.snapbake table { border-collapse: collapse; width: 100%; font-size: .93em; }
.snapbake th, .snapbake td { border-bottom: 1px solid var(--line); padding: .45rem .7rem;
  text-align: left; vertical-align: top; }
.snapbake thead th { border-bottom: 2px solid var(--line); font-weight: 650; vertical-align: bottom;
  background: var(--shade); }
.snapbake td.number, .snapbake th.number { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.snapbake td.missed { background: var(--bad-shade); }
.snapbake .card { border: 1px solid var(--line); border-radius: .5rem; padding: .9rem 1rem;
  margin: 1rem 0; }
.snapbake .card.bad { border-color: var(--bad); font-weight: normal; color: inherit; }
.snapbake .head { display: flex; flex-wrap: wrap; gap: .25rem 1rem; align-items: baseline;
  justify-content: space-between; }
.snapbake .answer { white-space: pre-wrap; overflow-wrap: anywhere; }
.snapbake .question { min-width: 12rem; font-weight: 600; }
.snapbake .verdict { white-space: nowrap; }
.snapbake mark { background: var(--mark); color: inherit; font-weight: 650;
  text-decoration: underline; border-radius: .2rem; padding: 0 .1rem; }
.snapbake details summary { cursor: pointer; color: var(--soft); }
"""


def page(title: str, body: str) -> str:
    """Return a whole page; `title` is plain text, `body` HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}</style>\n</head>\n"
        f'<body class="page">\n<div class="snapbake not-prose">\n{body}</div>\n</body>\n</html>\n'
    )


def table(head: str, rows: list[str]) -> str:
    """Return a table that scrolls sideways where it does not fit; the cells are HTML."""
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>\n"
    )


def cells(tag: str, *contents: str, kind: str = "") -> str:
    """Return cells of a table row, `tag` being td or th."""
    start = f'<{tag} class="{kind}">' if kind else f"<{tag}>"
    return "".join(f"{start}{content}</{tag}>" for content in contents)
