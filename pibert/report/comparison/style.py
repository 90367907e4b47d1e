"""How a report looks, and the little that moves in it; the page is whole without the script."""

CSS = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #59636e; --line: #d5dae0;
  --paper: #ffffff; --panel: #f4f6f8; --accent: #1f5f99; --good: #e7f1e4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --soft: #a3adb8; --line: #3a424b;
  --paper: #15191d; --panel: #1e242a; --accent: #7db8ec; --good: #22361f; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main, header, nav.top, footer { max-width: 84rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.2rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .6rem; }
h2 { font-size: 1.45rem; margin: 3rem 0 .8rem; padding-top: .7rem;
  border-top: 3px solid var(--accent); }
h3 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p, dl, .note { max-width: 52rem; }
a { color: var(--accent); }
.kicker { color: var(--soft); font-size: .9rem; margin: 0 0 .3rem; }
.verdict { font-size: 1.06rem; }
.alert { border-left: 4px solid #c2410c; padding: .4rem .9rem; background: var(--panel); }
nav.top { position: sticky; top: 0; z-index: 3; background: var(--paper);
  border-bottom: 1px solid var(--line); overflow-x: auto; white-space: nowrap;
  padding-top: .5rem; padding-bottom: .5rem; font-size: .9rem; }
nav.top a, nav.top button { margin-right: .9rem; }
/* Fades what is cut off while there is more to scroll to; at the end it lies after the links. */
nav.top::after { content: ""; display: inline-block; position: sticky; right: 0; width: 3rem;
  height: 1.6em; vertical-align: middle; pointer-events: none;
  background: linear-gradient(to right, transparent, var(--paper) 80%);
  box-shadow: 1.25rem 0 var(--paper); }
nav.top button { font: inherit; color: var(--ink); background: var(--panel);
  border: 1px solid var(--line); border-radius: 1rem; padding: .1rem .7rem; cursor: pointer; }
nav.top button[aria-pressed=true] { background: var(--accent); color: var(--paper); }
section { scroll-margin-top: 3rem; }
h2, h3, figure { scroll-margin-top: 3.2rem; }
dl.facts { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.1rem;
  margin: .8rem 0; padding: .9rem 1.1rem; background: var(--panel); border-radius: .5rem;
  font-size: .92rem; max-width: none; }
dl.facts dt { color: var(--soft); } dl.facts dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 1.2rem 0 1.8rem; }
figcaption { font-size: .88rem; line-height: 1.45; color: var(--soft); max-width: 60rem; }
figcaption strong { color: var(--ink); }
.table figcaption { margin-bottom: .45rem; }
.picture figcaption { margin-top: .45rem; }
/* Two beside each other where both fit; one that is wider than half takes the whole width. */
.tables { display: flex; flex-wrap: wrap; gap: 0 1.6rem; }
.tables > *, .tables::after { flex: 1 1 38rem; max-width: 100%; }
.tables::after { content: ""; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .4rem; }
.picture .scroll { background: #fff; padding: .4rem; width: fit-content; max-width: 100%; }
.tables table { font-size: .82rem; } .tables th, .tables td { padding: .3rem .42rem; }
/* Without the script it scrolls in its box, rather than shrink until nothing can be read. */
.picture img { display: block; height: auto; margin: 0 auto; width: 100%; max-width: var(--wide);
  min-width: min(var(--wide), 38rem); }
.picture.shrunk img { min-width: 0; cursor: zoom-in; }
.picture.shrunk.large img { min-width: var(--wide); cursor: zoom-out; }
.picture.shrunk figcaption::after { content: " Tap the figure to enlarge it."; font-style: italic; }
.picture.shrunk.large figcaption::after { content: " Tap the figure to shrink it."; }
table { border-collapse: collapse; width: 100%; font-size: .86rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .32rem .6rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
thead th { vertical-align: bottom; background: var(--panel); font-weight: 600;
  white-space: normal; min-width: 3.4rem; line-height: 1.25; }
thead th button { all: unset; cursor: pointer; } thead th button:focus-visible {
  outline: 2px solid var(--accent); }
th[aria-sort] button::after { content: " ▾"; } th[aria-sort=ascending] button::after {
  content: " ▴"; }
tbody th, tfoot th { text-align: left; font-weight: 500; position: sticky; left: 0;
  background: var(--paper); }
thead th.name { text-align: left; }
tbody tr:last-child > *, tfoot tr:last-child > * { border-bottom: 0; }
tbody tr:hover > * { background: var(--panel); }
tfoot > tr > * { border-top: 2px solid var(--line); color: var(--soft); font-style: italic; }
td b { background: var(--good); border-radius: .2rem; padding: 0 .2rem; margin: 0 -.2rem; }
td small { color: var(--soft); font-size: .8em; }
td.words { text-align: left; white-space: normal; min-width: 14rem; }
sup { line-height: 0; }
details { margin: .8rem 0; } summary { cursor: pointer; color: var(--accent); }
pre { overflow-x: auto; background: var(--panel); padding: .8rem; font-size: .8rem;
  border-radius: .4rem; }
code { font-size: .92em; }
footer { color: var(--soft); font-size: .85rem; padding-top: 2rem; padding-bottom: 2rem; }
[hidden] { display: none !important; }
@media (max-width: 40rem) { body { font-size: 15px; } h1 { font-size: 1.5rem; }
  main, header, nav.top, footer { padding-left: .85rem; padding-right: .85rem; }
  dl.facts { grid-template-columns: 1fr; gap: 0; } dl.facts dd { margin-bottom: .5rem; }
  th, td { padding: .3rem .45rem; } table { font-size: .82rem; } }
@media print { nav.top { display: none; } .scroll { overflow: visible; border: 0; }
  figure { break-inside: avoid; } figure.table table { font-size: .6rem; }
  th, td { padding: .15rem .25rem; } }
"""

JS = """
"use strict";
for (const table of document.querySelectorAll("figure.table table")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = row => {
        const cell = row.cells[column];
        return cell.tagName === "TH" ? cell.textContent : parseFloat(cell.dataset.value);
      };
      const order = (a, b) => {
        const x = key(a), y = key(b);
        if (typeof x === "string") return (up ? 1 : -1) * x.localeCompare(y);
        if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
        return x === y ? 0 : (up ? 1 : -1) * (x < y ? -1 : 1);
      };
      body.append(...[...body.rows].sort(order));
    });
  });
}
const watcher = new ResizeObserver(entries => {
  for (const { target } of entries) {
    const wide = Number(target.querySelector("img").getAttribute("width"));
    target.classList.toggle("shrunk", target.clientWidth < wide);
  }
});
for (const figure of document.querySelectorAll("figure.picture")) {
  const box = figure.querySelector(".scroll");
  const turn = () => { if (figure.matches(".shrunk")) figure.classList.toggle("large"); };
  box.addEventListener("click", turn);
  box.addEventListener("keydown", event => { if (event.key === "Enter") turn(); });
  watcher.observe(figure);
}
const sets = [...document.querySelectorAll("section.data")];
if (sets.length > 1) {
  const bar = document.querySelector("nav.top");
  const buttons = ["all data sets", ...sets.map(s => s.dataset.name)].map((name, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.addEventListener("click", () => {
      sets.forEach((s, n) => { s.hidden = place > 0 && n !== place - 1; });
      buttons.forEach((b, n) => b.setAttribute("aria-pressed", String(n === place)));
    });
    return button;
  });
  buttons[0].setAttribute("aria-pressed", "true");
  bar.prepend(...buttons);
  for (const link of bar.querySelectorAll("a.set")) link.remove();
}
"""
