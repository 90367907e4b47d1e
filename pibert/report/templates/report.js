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
