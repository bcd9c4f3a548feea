"use strict";
(() => {
  const board = JSON.parse(document.getElementById("values").textContent);
  const body = document.querySelector("#matrix tbody"), foot = document.querySelector("#matrix tfoot");
  const state = { measure: 0, view: "value", sort: "set", up: true, kinds: new Set(board.kinds), open: null };
  const element = (name, text, className) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const known = (values) => values.filter((v) => v !== null);
  const best = (values, higher) => (higher ? Math.max : Math.min)(...known(values));
  const ranks = (values, higher) => values.map((v) => v === null ? null :
    1 + values.filter((o) => o !== null && (higher ? o > v : o < v)).length +
    (values.filter((o) => o === v).length - 1) / 2);

  function rows() {
    const m = board.measures[state.measure];
    const found = board.sets.filter((one) => state.kinds.has(one.kind) && m.values[one.name]).map((one) => {
      const values = m.values[one.name], top = best(values, m.higher);
      return { one, values, top, ranks: ranks(values, m.higher), reference: m.references[one.name] };
    });
    const by = (row) => state.sort === "set" ? row.one.order
      : state.sort === "reference" ? (row.reference ? row.reference[1] : null)
      : state.view === "rank" ? row.ranks[state.sort]
      : state.view === "behind" ? Math.abs(row.top - row.values[state.sort]) : row.values[state.sort];
    return found.sort((a, b) => {
      const x = by(a), y = by(b);
      if (x === null || y === null) return (x === null) - (y === null);
      return (state.up ? 1 : -1) * (x - y);
    });
  }

  function cell(row, i, m) {
    const value = row.values[i];
    if (value === null) return element("td", "–");
    const behind = Math.abs(row.top - value);
    const text = state.view === "value" ? value.toFixed(m.digits)
      : state.view === "rank" ? String(row.ranks[i]) : behind.toFixed(m.digits);
    const made = element("td", text, (m.leaders[row.one.name] || []).includes(i) ? "best" : "");
    made.dataset.heat = "";
    made.style.setProperty("--heat", Math.min(45, 9 * behind / m.region).toFixed(1));
    return made;
  }

  function draw() {
    const m = board.measures[state.measure], shown = rows();
    body.replaceChildren(...shown.map((row) => {
      const line = element("tr");
      const name = element("th", row.one.name);
      name.scope = "row";
      name.append(element("small", `${row.one.kind}, ${row.one.classes} classes`));
      line.append(name, ...row.values.map((_, i) => cell(row, i, m)));
      const beside = row.reference;
      const last = element("td", beside ? beside[1].toFixed(m.digits) : "–");
      if (beside) last.append(element("small", beside[0]));
      line.append(last);
      line.tabIndex = 0;
      line.setAttribute("aria-current", String(state.open === row.one.name));
      const open = () => { state.open = state.open === row.one.name ? null : row.one.name; draw(); detail(row.one); };
      line.addEventListener("click", open);
      line.addEventListener("keydown", (event) => { if (event.key === "Enter") open(); });
      return line;
    }));
    const mean = element("tr");
    mean.append(element("th", "mean rank"), ...board.heads.map((_, i) => {
      const own = known(shown.map((row) => row.ranks[i]));
      return element("td", own.length ? (own.reduce((a, b) => a + b, 0) / own.length).toFixed(1) : "–");
    }), element("td"));
    foot.replaceChildren(mean);
    for (const title of document.querySelectorAll("#matrix thead th")) {
      const own = title.dataset.sort === String(state.sort);
      if (own) title.setAttribute("aria-sort", state.up ? "ascending" : "descending");
      else title.removeAttribute("aria-sort");
    }
    document.getElementById("shown").textContent =
      `${shown.length} of ${board.sets.length} sets have this measure and are shown; ${m.higher ? "more" : "less"} is better.`;
  }

  function detail(one) {
    const place = document.getElementById("detail");
    place.hidden = state.open === null;
    if (place.hidden) return;
    const list = element("dl");
    for (const [name, value] of one.about) list.append(element("dt", name), element("dd", value));
    place.replaceChildren(element("h3", one.name), list);
    place.scrollIntoView({ block: "nearest" });
  }

  document.getElementById("measure").addEventListener("change", (event) => { state.measure = Number(event.target.value); draw(); });
  for (const button of document.querySelectorAll("[data-view]")) button.addEventListener("click", () => {
    state.view = button.dataset.view;
    for (const other of document.querySelectorAll("[data-view]")) other.setAttribute("aria-pressed", String(other === button));
    draw();
  });
  for (const chip of document.querySelectorAll("[data-filter]")) chip.addEventListener("click", () => {
    const kind = chip.dataset.filter, there = state.kinds.has(kind);
    if (there) state.kinds.delete(kind); else state.kinds.add(kind);
    chip.setAttribute("aria-pressed", String(!there));
    draw();
  });
  for (const title of document.querySelectorAll("#matrix thead th")) title.addEventListener("click", () => {
    const sort = title.dataset.sort, key = /^\d+$/.test(sort) ? Number(sort) : sort;
    if (state.sort === key) state.up = !state.up;
    else { state.sort = key; state.up = key === "set" || state.view !== "value" || !board.measures[state.measure].higher; }
    draw();
  });
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = root.dataset.theme || (dark ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
  });
  draw();
})();
