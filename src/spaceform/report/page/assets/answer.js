// The picture of one goal at a time, and the recommendation for other weights.
function picture(part) {
  const figures = Array.from(part.querySelectorAll("figure")), buttons = Array.from(part.querySelectorAll("[data-panel]"));
  const show = chosen => {
    figures.forEach((figure, i) => { figure.hidden = i !== chosen; });
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === chosen)));
  };
  buttons.forEach((button, i) => button.addEventListener("click", () => show(i)));
  if (buttons.length) show(0);
}

function weighed(goals, weights, head) { // the weighted expected loss of a head, in differences that matter
  const total = weights.reduce((a, b) => a + b, 0);
  return goals.reduce((sum, goal, i) => sum + (total ? weights[i] / total : 0) * goal.loss[head], 0);
}

function weights(form) {
  const { heads, goals, choice, sentence } = JSON.parse(document.getElementById(form.dataset.weights).textContent);
  const inputs = Array.from(form.querySelectorAll("input")), status = form.querySelector("[role=status]");
  const rows = heads.map(head => document.getElementById(head.row));
  const update = () => {
    const given = inputs.map(input => Number(input.value));
    inputs.forEach(input => { input.nextElementSibling.value = input.value; });
    const loss = heads.map((_, i) => weighed(goals, given, i));
    const order = heads.map((_, i) => i).sort((a, b) => loss[a] - loss[b]);
    const own = inputs.every(input => input.value === input.dataset.default);
    const none = given.every(weight => weight === 0);
    const best = own ? choice : order[0];
    rows.forEach((row, i) => {
      row.cells[1].textContent = none ? "" : loss[i].toFixed(2);
      row.classList.toggle("chosen", !none && i === best);
    });
    rows[0].parentElement.append(...order.map(i => rows[i]));
    status.textContent = none ? "Give at least one goal a weight."
      : own ? sentence : `With these weights choose ${heads[best].label}.`;
  };
  form.addEventListener("input", update);
  form.addEventListener("submit", event => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(update));
  form.hidden = false;
  update();
}
