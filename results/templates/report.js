"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => {
        const cell = row.cells[column];
        const text = cell.dataset.value ?? cell.textContent.trim();
        const number = Number(text);
        return text === "" ? null : Number.isNaN(number) ? text : number;
      };
      const rows = [...table.tBodies[0].rows];
      rows.sort((one, other) => {
        const a = key(one), b = key(other);
        if (a === null || b === null) return (a === null) - (b === null);
        const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
        return up ? order : -order;
      });
      table.tBodies[0].append(...rows);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}

const PARTS = [["pause", "pause at the gateway"], ["prefill", "to the first token (queue and prefill)"], ["decode", "decode"], ["tool", "tools"], ["wait", "other"], ["fail", "not served"], ["served", "below: the turn on its replica"], ["moved", "moved from another replica"]];
const SVG = "http://www.w3.org/2000/svg";
function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
function html(name, text) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  return made;
}
const seconds = (value) => (value === null ? "" : `${value.toFixed(value < 10 ? 2 : 1)} s`);

function pieces(session) {
  const found = [];
  const add = (part, from, to, what) => { if (to > from) found.push({ part, from, to, what }); };
  let last = 0;
  session.turns.forEach(([arrived, dispatched, first, finished, replica, , , , tools, , status], index) => {
    add("wait", last, arrived, "other");
    const name = `turn ${index + 1} on ${replica ?? "none"}`;
    if (status !== "ok") add("fail", arrived, finished, `turn ${index + 1}: ${status}`);
    else {
      add("pause", arrived, dispatched, `${name}: pause`);
      add("prefill", dispatched, first ?? finished, `${name}: to the first token`);
      add("decode", first ?? finished, finished, `${name}: decode`);
    }
    last = finished + tools;
    add("tool", finished, last, `tools after turn ${index + 1}`);
  });
  return found;
}
function draw(session, place) {
  const width = 900, left = 60, end = Math.max(session.latency, ...pieces(session).map((piece) => piece.to)) || 1;
  const scale = (width - left - 20) / end;
  const replicas = [...new Set(session.turns.map((turn) => turn[4]).filter((name) => name !== null))].sort();
  const height = 60 + 16 * replicas.length;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `timeline of ${session.id}` });
  for (const { part, from, to, what } of pieces(session)) {
    const bar = element("rect", { x: left + from * scale, y: 8, width: Math.max((to - from) * scale, 0.5), height: 22, class: part });
    bar.append(element("title", {}, `${what}: ${seconds(to - from)}`));
    svg.append(bar);
  }
  replicas.forEach((name, row) => {
    const y = 48 + 16 * row;
    svg.append(element("text", { x: left - 6, y, "text-anchor": "end" }, name));
    for (const turn of session.turns) {
      if (turn[4] === name && turn[1] !== null) svg.append(element("rect", { x: left + turn[1] * scale, y: y - 9, width: Math.max((turn[3] - turn[1]) * scale, 1), height: 9, class: turn[9] ? "moved" : "served" }));
    }
  });
  const step = 10 ** Math.floor(Math.log10(end)) / (end / 10 ** Math.floor(Math.log10(end)) < 3 ? 4 : 1);
  for (let at = 0; at <= end; at += step) svg.append(element("text", { x: left + at * scale, y: height - 4, "text-anchor": "middle" }, `${+at.toFixed(3)} s`));
  place.replaceChildren(svg);
}
function list(session, place) {
  const table = html("table"), head = table.createTHead().insertRow(), body = table.createTBody();
  for (const title of ["turn", "replica", "pause", "TTFT", "decode", "tools after", "prompt", "cached", "output", "status"]) head.append(Object.assign(html("th", title), { className: title === "replica" || title === "status" ? "" : "number" }));
  session.turns.forEach(([arrived, dispatched, first, finished, replica, prompt, cached, output, tools, moved, status], index) => {
    const row = body.insertRow();
    const less = (one, other) => (one === null || other === null ? null : one - other);
    const values = [index + 1, moved ? `${replica} (moved)` : replica ?? "", seconds(less(dispatched, arrived)), seconds(less(first, arrived)), seconds(less(finished, first)), seconds(tools), prompt.toLocaleString("en"), cached === null ? "unknown" : cached.toLocaleString("en"), output.toLocaleString("en"), status];
    values.forEach((value, column) => Object.assign(row.insertCell(), { textContent: value, className: column === 1 || column === 9 ? "" : "number" }));
  });
  place.replaceChildren(table);
}
for (const details of document.querySelectorAll("details.drill")) {
  details.addEventListener("toggle", () => {
    const cells = JSON.parse(document.getElementById(details.dataset.source).textContent);
    const cell = html("select"), session = html("select");
    cell.ariaLabel = "scheduler";
    session.ariaLabel = "session";
    cells.forEach(({ scheduler, seed, total }, index) => cell.add(new Option(`${scheduler}, seed ${seed} (${total} sessions)`, index)));
    const show = () => {
      const chosen = cells[cell.value].sessions[session.value];
      if (!chosen) return;
      draw(chosen, details.querySelector(".timeline"));
      list(chosen, details.querySelector(".turns"));
    };
    const fill = () => {
      session.replaceChildren(...cells[cell.value].sessions.map(({ id, status, latency, turns }, index) => new Option(`${id}: ${latency.toFixed(1)} s, ${turns.length} turns${status === "finished" ? "" : `, ${status}`}`, index)));
      show();
    };
    cell.addEventListener("change", fill);
    session.addEventListener("change", show);
    details.querySelector(".controls").replaceChildren(cell, session);
    details.querySelector(".legend").replaceChildren(...PARTS.map(([part, text]) => { const entry = html("span"), swatch = html("i"); swatch.className = part; entry.append(swatch, text); return entry; }));
    fill();
  }, { once: true });
}
