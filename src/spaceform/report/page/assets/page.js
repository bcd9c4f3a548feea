// Sorting, the theme, and starting the viewers.
const root = document.documentElement;
const viewers = [];

function remembered(value) {
  try {
    if (value === undefined) return localStorage.getItem("spaceform-theme");
    localStorage.setItem("spaceform-theme", value);
  } catch { /* storage may be closed to files; the choice then lasts as long as the page */ }
  return null;
}

function dark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function retheme() {
  document.getElementById("theme").textContent = dark() ? "Light" : "Dark";
  for (const viewer of viewers) viewer.theme();
}

function sortable(table) {
  const body = table.tBodies[0], heads = Array.from(table.querySelectorAll("th[data-column]"));
  for (const head of heads) head.querySelector("button").addEventListener("click", () => {
    const column = Number(head.dataset.column);
    const first = head.dataset.better === "higher" ? "descending" : "ascending";
    const now = head.getAttribute("aria-sort");
    const next = !now || now === "none" ? first : now === "ascending" ? "descending" : "ascending";
    for (const other of heads) other.setAttribute("aria-sort", other === head ? next : "none");
    const sign = next === "ascending" ? 1 : -1;
    const key = row => row.cells[column].dataset.value;
    const rows = Array.from(body.rows).sort((a, b) => {
      const x = key(a), y = key(b);
      if (x === "" || y === "") return (x === "") - (y === ""); // what is missing stays last
      const p = Number(x), q = Number(y);
      return sign * (Number.isNaN(p) || Number.isNaN(q) ? x.localeCompare(y, "en", { numeric: true }) : p - q);
    });
    body.append(...rows.filter(row => !row.matches(".reference")), ...rows.filter(row => row.matches(".reference"))); // heads first
  });
}

const kept = remembered();
if (kept === "dark" || kept === "light") root.dataset.theme = kept;
document.getElementById("theme").addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  remembered(root.dataset.theme);
  retheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", retheme);
document.querySelectorAll("table.sortable").forEach(sortable);
document.querySelectorAll(".picture").forEach(picture);
document.querySelectorAll("[data-weights]").forEach(weights);
const fits = new ResizeObserver(seen => { // a table that is wider than the screen says so
  for (const { target } of seen) {
    const more = target.clientWidth > 0 && target.scrollWidth > target.clientWidth + 1;
    target.toggleAttribute("data-more", more);
    if (more) target.tabIndex = 0; else target.removeAttribute("tabindex");
  }
});
document.querySelectorAll(".scroll").forEach(box => fits.observe(box));
function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const fold = target && target.closest("details");
  if (fold) fold.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();
let themeBefore, folded = []; // paper cannot be clicked; paper is white: print in the light theme, then go back
addEventListener("beforeprint", () => {
  folded = Array.from(document.querySelectorAll("details.evidence:not([open])"));
  for (const fold of folded) fold.open = true;
  themeBefore = root.dataset.theme;
  root.dataset.theme = "light";
  for (const viewer of viewers) viewer.print();
});
addEventListener("afterprint", () => {
  for (const fold of folded) fold.open = false;
  if (themeBefore) root.dataset.theme = themeBefore; else delete root.dataset.theme;
  retheme();
});
retheme();
document.querySelectorAll("[data-viewer]").forEach(part => viewers.push(new Viewer(part)));
root.dataset.ready = "yes";
