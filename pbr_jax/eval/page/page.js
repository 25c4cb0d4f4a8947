"use strict";
const make = (tag, text, className) => {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  if (className) node.className = className;
  return node;
};
const digits = (value, signed) => {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value), text = size.toFixed(size < 1 ? 3 : size < 10 ? 2 : size < 100 ? 1 : 0);
  const sign = Number(text) === 0 ? "" : value < 0 ? "−" : signed ? "+" : "";
  return sign + text;
};
const day = (time) => (time === null || time === undefined ? "" : new Date(1000 * time).toISOString().slice(0, 10));

// -- sorting ------------------------------------------------------------------------------------------
const key = (cell) => {
  const text = cell.dataset.value ?? cell.textContent.trim();
  const number = parseFloat(text.replace("−", "-").replace(/,/g, ""));
  return Number.isNaN(number) ? text : number;
};
const sortable = (table) => table.querySelectorAll("thead button").forEach((button) => {
  button.addEventListener("click", () => {
    const head = button.closest("th"), place = [...head.parentNode.children].indexOf(head);
    const down = head.getAttribute("aria-sort") !== "descending";
    table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => {
      const x = key(a.cells[place]), y = key(b.cells[place]);
      const order = typeof x === "number" && typeof y === "number" ? x - y
        : typeof x === typeof y ? String(x).localeCompare(String(y)) : typeof x === "number" ? 1 : -1;
      return down ? -order : order;
    });
    table.tBodies[0].append(...rows);
  });
});
document.querySelectorAll("table").forEach(sortable);

// -- meanings of measures, by pointer and by keyboard ---------------------------------------------------
const tip = document.getElementById("tip");
const term = (node) => node.closest?.("[data-tip]");
const show = (node) => {
  tip.textContent = node.dataset.tip;
  tip.showPopover?.();
  const box = node.getBoundingClientRect(), own = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(box.left, document.documentElement.clientWidth - own.width - 4))}px`;
  tip.style.top = `${box.bottom + own.height + 8 < innerHeight ? box.bottom + 6 : Math.max(4, box.top - own.height - 6)}px`;
};
const hide = () => tip.hidePopover?.();
for (const event of ["mouseover", "focusin"]) document.addEventListener(event, (e) => { const node = term(e.target); if (node) show(node); });
for (const event of ["mouseout", "focusout"]) document.addEventListener(event, (e) => { if (term(e.target)) hide(); });

// -- questions -------------------------------------------------------------------------------------------
const options = (select, entries) => select.replaceChildren(...entries.map(([value, text]) => {
  const option = make("option", text); option.value = value; return option;
}));
const metrics = (data, run) => data.names.map((name, i) => `${name} ${digits(run[1][i])}`).join(" · ");
const side = (data, question, row) => {
  const box = make("div"), run = question.runs[row];
  box.append(make("h5", data.rows[row]));
  if (!run) { box.append(make("p", "This run has no such question.", "soft")); return box; }
  box.append(make("p", run[0] ? `Answer: ${run[0]}` : "No answer was written; it was scored only.", "text"));
  box.append(make("p", metrics(data, run), "soft value"));
  const list = make("ol");
  for (const [place, score, parts, shown] of run[2]) {
    const [id, whose, time, text] = question.documents[place], item = make("li");
    const inside = Object.entries(parts).map(([name, value]) => `${name} ${digits(value)}`).join(", ");
    const about = [id, day(time), whose && `of ${whose}`, `score ${digits(score)}${inside ? ` (${inside})` : ""}`, shown ? "" : "not shown to the model"];
    item.append(make("div", about.filter(Boolean).join(" · "), "soft"), make("div", text, "text"));
    list.append(item);
  }
  const details = make("details");
  details.append(make("summary", `Documents: ${run[2].length} of ${run[3]}`), list);
  if (run[2].length) box.append(details);
  return box;
};
const gain = (data, question, left, right) => {
  const [a, b] = [question.runs[left], question.runs[right]].map((run) => run && run[1][0]);
  return a === null || b === null || a === undefined || b === undefined ? null : (data.lower ? a - b : b - a);
};
const card = (data, question, left, right) => {
  const box = make("article", null, "card"), change = gain(data, question, left, right);
  box.append(make("h4", `Question ${question.id}`));
  const facts = [`user ${question.user}`, question.category, day(question.time),
    question.history === null ? "" : `${question.history} documents in the history`];
  box.append(make("p", facts.filter(Boolean).join(" · "), "soft"));
  if (left !== right && change !== null) box.append(make("p", `Gain in ${data.measure}: ${digits(change, true)}`, change > 0 ? "better" : change < 0 ? "worse" : ""));
  box.append(make("p", question.input || "(the runs keep no texts)", "text"));
  box.append(make("p", `Target: ${question.target ?? "(not kept)"}`, "text"));
  const sides = make("div", null, "sides");
  for (const row of left === right ? [left] : [left, right]) sides.append(side(data, question, row));
  box.append(sides);
  return box;
};
document.querySelectorAll("section[data-group]").forEach((section) => {
  const source = section.querySelector("script[type='application/json']");
  if (!source) return;
  const data = JSON.parse(source.textContent), find = (name) => section.querySelector(`[data-part=${name}]`);
  const [left, right, order, user, category] = ["left", "right", "order", "user", "category"].map(find);
  const rows = data.rows.map((label, i) => [i, label]), some = (field) => [...new Set(data.questions.map((q) => q[field]))].filter(Boolean).sort();
  options(left, rows); options(right, rows); left.value = data.reference; right.value = data.shown;
  options(order, [["gains", "largest gains first"], ["losses", "largest losses first"]]);
  options(user, [["", "all users"], ...some("user").map((one) => [one, one])]);
  options(category, [["", "all categories"], ...some("category").map((one) => [one, one])]);
  let count = 10;
  const drawCards = () => {
    const [a, b] = [Number(left.value), Number(right.value)], sign = order.value === "gains" ? -1 : 1;
    const kept = data.questions.filter((q) => (!user.value || q.user === user.value) && (!category.value || q.category === category.value));
    kept.sort((x, y) => sign * ((gain(data, x, a, b) ?? 0) - (gain(data, y, a, b) ?? 0)));
    find("count").textContent = `${Math.min(count, kept.length)} of ${kept.length} questions are shown.`;
    find("cards").replaceChildren(...kept.slice(0, count).map((q) => card(data, q, a, b)));
    find("more").hidden = kept.length <= count;
  };
  for (const control of [left, right, order, user, category]) control.addEventListener("change", () => { count = 10; drawCards(); });
  find("more").addEventListener("click", () => { count += 20; drawCards(); });
  drawCards();
});
