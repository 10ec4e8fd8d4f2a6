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

const PARTS = [["pause", "pause at the gateway"], ["prefill", "to the first token (queue and prefill)"], ["transfer", "KV transfer"], ["decode", "decode"], ["tool", "tools"], ["wait", "other"], ["fail", "not served"], ["served", "below: the turn on its replica"], ["moved", "moved from another replica"]];
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
  session.turns.forEach(([arrived, dispatched, first, finished, replica, , , , tools, , status, prefiller, prefilled, sent, received], index) => {
    add("wait", last, arrived, "other");
    const name = `turn ${index + 1} on ${replica ?? "none"}`;
    if (status !== "ok") add("fail", arrived, finished, `turn ${index + 1}: ${status}`);
    else {
      add("pause", arrived, dispatched, `${name}: pause`);
      const start = first ?? finished;
      let at = dispatched;
      if (prefilled != null) {
        add("prefill", at, prefilled, `turn ${index + 1} on ${prefiller}: prefill`);
        at = prefilled;
      }
      if (sent != null && received != null && sent >= at && received <= start) {
        add("prefill", at, sent, `${name}: queue, before the KV transfer`);
        add("transfer", sent, received, prefilled == null ? `${name}: KV from the shared store` : `${name}: KV from ${prefiller}`);
        at = received;
      }
      add("prefill", at, start, `${name}: to the first token`);
      add("decode", first ?? finished, finished, `${name}: decode`);
    }
    last = finished + tools;
    add("tool", finished, last, `tools after turn ${index + 1}`);
  });
  return found;
}
// Times as drawn: without tool time, what is not the model's is a hundredth of what is.
function clock(all, short) {
  if (!short) return (at) => at;
  const idle = ({ part }) => part === "tool" || part === "wait";
  const gap = all.reduce((sum, piece) => sum + (idle(piece) ? 0 : piece.to - piece.from), 0) / 100;
  const cuts = all.filter((piece) => idle(piece) && piece.to - piece.from > gap);
  return (at) => cuts.reduce((drawn, { from, to }) => (at <= from ? drawn : drawn - (Math.min(at, to) - from) * (1 - gap / (to - from))), at);
}
function draw(session, place, short) {
  const all = pieces(session), at = clock(all, short);
  const width = 900, left = 60, end = Math.max(at(session.latency), ...all.map((piece) => at(piece.to))) || 1;
  const scale = (width - left - 20) / end;
  const replicas = [...new Set(session.turns.flatMap((turn) => [turn[4], turn[11]]).filter((name) => name != null))].sort();
  const height = 60 + 16 * replicas.length;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `timeline of ${session.id}` });
  // Transfers last, so that none disappears under what follows it.
  for (const { part, from, to, what } of all.sort((one, other) => (one.part === "transfer") - (other.part === "transfer"))) {
    const bar = element("rect", { x: left + at(from) * scale, y: 8, width: Math.max((at(to) - at(from)) * scale, part === "transfer" ? 1 : 0.5), height: 22, class: part });
    bar.append(element("title", {}, `${what}: ${seconds(to - from)}`));
    svg.append(bar);
  }
  replicas.forEach((name, row) => {
    const y = 48 + 16 * row;
    svg.append(element("text", { x: left - 6, y, "text-anchor": "end" }, name));
    for (const turn of session.turns) {
      const span = (from, to, part) => svg.append(element("rect", { x: left + at(from) * scale, y: y - 9, width: Math.max((at(to) - at(from)) * scale, 1), height: 9, class: part }));
      if (turn[1] === null) continue;
      if (turn[11] === name && turn[12] != null) span(turn[1], turn[12], "served");
      if (turn[4] === name) span(turn[12] ?? turn[1], turn[3], turn[9] ? "moved" : "served");
    }
  });
  const step = 10 ** Math.floor(Math.log10(end)) / (end / 10 ** Math.floor(Math.log10(end)) < 3 ? 4 : 1);
  for (let tick = 0; tick <= end; tick += step) svg.append(element("text", { x: left + tick * scale, y: height - 4, "text-anchor": "middle" }, `${+tick.toFixed(3)} s`));
  place.replaceChildren(svg);
}
function list(session, place) {
  const table = html("table"), head = table.createTHead().insertRow(), body = table.createTBody();
  for (const title of ["turn", "replica", "pause", "TTFT", "transfer", "decode", "tools after", "prompt", "cached", "output", "status"]) head.append(Object.assign(html("th", title), { className: title === "replica" || title === "status" ? "" : "number" }));
  session.turns.forEach(([arrived, dispatched, first, finished, replica, prompt, cached, output, tools, moved, status, prefiller, , sent, received], index) => {
    const row = body.insertRow();
    const less = (one, other) => (one == null || other == null ? null : one - other);
    const values = [index + 1, (prefiller == null ? "" : `${prefiller}, then `) + (moved ? `${replica} (moved)` : replica ?? ""), seconds(less(dispatched, arrived)), seconds(less(first, arrived)), seconds(less(received, sent)), seconds(less(finished, first)), seconds(tools), prompt.toLocaleString("en"), cached === null ? "unknown" : cached.toLocaleString("en"), output.toLocaleString("en"), status];
    values.forEach((value, column) => Object.assign(row.insertCell(), { textContent: value, className: column === 1 || column === 10 ? "" : "number" }));
  });
  place.replaceChildren(table);
}
for (const details of document.querySelectorAll("details.drill")) {
  details.addEventListener("toggle", () => {
    const cells = JSON.parse(document.getElementById(details.dataset.source).textContent);
    const cell = html("select"), session = html("select"), short = html("input"), label = html("label");
    short.type = "checkbox";
    label.append(short, " tool time cut short");
    cell.ariaLabel = "scheduler";
    session.ariaLabel = "session";
    cells.forEach(({ scheduler, seed, total }, index) => cell.add(new Option(`${scheduler}, seed ${seed} (${total} sessions)`, index)));
    const show = () => {
      const chosen = cells[cell.value].sessions[session.value];
      if (!chosen) return;
      draw(chosen, details.querySelector(".timeline"), short.checked);
      list(chosen, details.querySelector(".turns"));
    };
    const fill = () => {
      session.replaceChildren(...cells[cell.value].sessions.map(({ id, status, latency, turns }, index) => new Option(`${id}: ${latency.toFixed(1)} s, ${turns.length} turns${status === "finished" ? "" : `, ${status}`}`, index)));
      show();
    };
    cell.addEventListener("change", fill);
    session.addEventListener("change", show);
    short.addEventListener("change", show);
    details.querySelector(".controls").replaceChildren(cell, session, label);
    details.querySelector(".legend").replaceChildren(...PARTS.map(([part, text]) => { const entry = html("span"), swatch = html("i"); swatch.className = part; entry.append(swatch, text); return entry; }));
    fill();
  }, { once: true });
}
