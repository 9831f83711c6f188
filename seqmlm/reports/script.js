
"use strict";
const tip = document.getElementById("tip");
function show(target) {
  const box = target.getBoundingClientRect();
  tip.textContent = target.dataset.tip;
  tip.hidden = false;
  const left = Math.min(Math.max(8, box.left), window.innerWidth - tip.offsetWidth - 8);
  const below = box.bottom + 6;
  const fits = below + tip.offsetHeight < window.innerHeight;
  tip.style.left = Math.max(8, left) + "px";
  tip.style.top = (fits ? below : Math.max(4, box.top - tip.offsetHeight - 6)) + "px";
}
for (const kind of ["pointerover", "focusin"]) {
  document.addEventListener(kind, (event) => {
    const target = event.target.closest("[data-tip]");
    if (target) show(target); else tip.hidden = true;
  });
}
for (const kind of ["scroll", "focusout"]) document.addEventListener(kind, () => { tip.hidden = true; }, true);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") { tip.hidden = true; return; }
  const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const group = event.target.closest("[data-walk]");
  if (!way || !group || !event.target.dataset.tip) return;
  const stops = [...group.querySelectorAll("[data-tip]")];
  const next = stops[stops.indexOf(event.target) + way];
  if (!next) return;
  event.preventDefault();
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, table = head.closest("table"), body = table.tBodies[0];
    const down = head.getAttribute("aria-sort") !== "descending";
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[head.cellIndex].dataset.value;
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const way = down ? -1 : 1;
      return way * (head.className === "number" ? Number(x) - Number(y) : x.localeCompare(y));
    };
    body.append(...[...body.rows].sort(order));
  });
}
for (const field of document.querySelectorAll("input.filter")) {
  field.addEventListener("input", () => {
    const wanted = field.value.toLowerCase();
    for (const row of document.getElementById(field.dataset.table).tBodies[0].rows)
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
}
