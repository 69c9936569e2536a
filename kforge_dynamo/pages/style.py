"""The style sheet of the pages: light and dark by the reader's setting, one column on a phone."""

from __future__ import annotations

STYLE = """
:root { --back: #ffffff; --fore: #1b1f24; --dim: #57606a; --line: #d0d7de; --good: #1a7f37; --bad: #b42318; --mark: #0550ae;
        --panel: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --back: #0d1117; --fore: #e6edf3; --dim: #9198a1; --line: #3d444d; --good: #3fb950; --bad: #ff7b72; --mark: #79c0ff;
          --panel: #161b22; }
}
body { background: var(--back); color: var(--fore); font: 15px/1.5 system-ui, sans-serif; margin: 0; }
main { max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin-top: 2rem; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { border-bottom: 1px solid var(--line); padding: 0.3rem 0.6rem; text-align: left; vertical-align: top; }
td { max-width: 28rem; overflow-wrap: break-word; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.good { color: var(--good); } .bad { color: var(--bad); } .dim { color: var(--dim); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1rem; }
dt { color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; }
details { margin: 0.5rem 0; } summary { cursor: pointer; overflow-wrap: anywhere; }
pre { background: var(--panel); padding: 0.6rem; overflow-x: auto; font: 0.8rem/1.45 ui-monospace, monospace; }
svg { width: 100%; max-width: 46rem; height: auto; display: block; }
svg text { fill: var(--dim); font: 11px system-ui, sans-serif; }
.axis { stroke: var(--line); } .roof { stroke: var(--dim); stroke-dasharray: 5 4; fill: none; }
.point { fill: var(--good); } .slow { fill: var(--bad); } .base { fill: none; stroke: var(--mark); stroke-width: 1.5; }
.trace { stroke: var(--mark); fill: none; stroke-width: 1.5; }
.k { color: var(--mark); } .c { color: var(--dim); font-style: italic; } .s { color: var(--good); } .m { color: var(--bad); }
@media (max-width: 40rem) { main { padding: 0.6rem; } dl { grid-template-columns: 1fr; } dd { margin-bottom: 0.4rem; } }
"""
