"use strict";
// Draws the data of /look.json, once a second. The page keeps the data of two minutes, and stores nothing outside the tab.

const PERIOD_MS = 1000;
const PATIENCE_MS = 5000;
// The charts show the last SPAN seconds, and are never narrower than SPAN_MIN.
const SPAN = 120;
const SPAN_MIN = 20;
// Tenants in the charts: as many as there are shapes.
const SHAPES = [
  "M7 1a6 6 0 1 0 .01 0z", "M1.5 1.5h11v11h-11z", "M7 1l6.5 12H.5z", "M7 0l7 7-7 7-7-7z",
  "M5 0h4v5h5v4H9v5H5V9H0V5h5z", "M.5 1h13L7 13.5z",
];
const LETTERS = "ABCDEF";
// The number of rows of the table at first, and of further rows with each "more" (rows are tall in a narrow window); the tenants in the matrix.
const ROWS = matchMedia("(max-width: 1000px)").matches ? 8 : 20;
const MATRIX = matchMedia("(max-width: 560px)").matches ? 6 : 8;

// The number of missed latency targets that are described in words.
const TOLD = 3;

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

// ---- Numbers as fairq top writes them.

function three(value) {
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return value.toFixed(digits);
}
function scaled(value, units) {
  let unit = 0;
  while (unit + 1 < units.length && value >= 999.5) {
    value /= 1000;
    unit += 1;
  }
  return unit === 0 && value >= 100 ? [value.toFixed(0), units[0]] : [three(value), units[unit]];
}
function count(value) {
  const [text, unit] = scaled(value, ["", " k", " M", " G"]);
  return (unit === "" && Number.isInteger(value) ? String(value) : text) + unit;
}
const bandwidth = (value) => scaled(value, [" B/s", " kB/s", " MB/s", " GB/s"]).join("");
const time = (ns) => scaled(ns, [" ns", " µs", " ms", " s"]).join("");
const percent = (part) => (100 * part).toFixed(1) + " %";

// ---- State.

const state = {
  look: null, previous: null, history: [], paused: false, gone: null, write: "off", shown: ROWS, again: null,
  // The tenant of each shape.
  slots: new Array(SHAPES.length).fill(null),
};

function remember(look) {
  const last = state.history.at(-1);
  // A restarted server counts from 0 again.
  if (last && last.look && look.status.uptime_s < last.look.status.uptime_s) state.previous = null;
  state.history.push({ at: performance.now() / 1000, look, tenants: new Map(look.tenants.map((t) => [t.name, t.last_second])) });
  forget();
}

// Adds a gap, which lines do not cross.
function miss() {
  if (state.history.length && state.history.at(-1).look) state.history.push({ at: performance.now() / 1000, look: null });
  forget();
}

function forget() {
  const oldest = performance.now() / 1000 - SPAN - 2;
  while (state.history.length && state.history[0].at < oldest) state.history.shift();
}

// Each of the tenants with the most bytes in the stored data has a shape, and keeps it while it is
// one of them, because a line whose shape changed would be taken for another tenant's.
function choose() {
  const moved = new Map();
  for (const tenant of state.look.tenants) moved.set(tenant.name, 0);
  for (const moment of state.history) {
    for (const [name, last] of moment.tenants || []) {
      if (last && moved.has(name)) moved.set(name, moved.get(name) + last.bytes_per_s);
    }
  }
  const names = [...moved.keys()].sort((a, b) => moved.get(b) - moved.get(a) || a.localeCompare(b)).slice(0, SHAPES.length);
  state.slots = state.slots.map((name) => (names.includes(name) ? name : null));
  for (const name of names) if (!state.slots.includes(name)) state.slots[state.slots.indexOf(null)] = name;
}

// ---- Elements.

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
function symbol(slot) {
  const svg = draw("svg", { viewBox: "0 0 14 14", class: `t${slot}`, "aria-hidden": "true" });
  svg.append(draw("path", { d: SHAPES[slot], class: "shape" }));
  return svg;
}

// ---- The device.

function device() {
  const { status, tenants } = state.look;
  const policy = status.policy_state;
  const sum = (value) => tenants.reduce((total, t) => total + (t.last_second ? value(t.last_second) : 0), 0);
  const before = state.previous;
  const rate = (key) => {
    const seconds = before ? status.uptime_s - before.status.uptime_s : 0;
    return seconds > 0 ? count(Math.max(0, policy[key] - before.status.policy_state[key]) / seconds) + "/s" : "–";
  };
  const stores = status.stores ?? [];
  const stuck = stores.filter((store) => store.stuck);
  const tiles = [
    ["iops", "IOPS", count(sum((t) => t.iops))],
    ["bandwidth", "bandwidth", bandwidth(sum((t) => t.bytes_per_s))],
    ["slots", "slots in use (D)", slotsOf(policy)],
    ["depth", "why D", stores.length > 1 ? "see the stores below" : why(policy.depth, tenants)],
    ["classes", "H/L", ratio(policy) === null ? "no classes" : three(ratio(policy))],
    ["spread", "ahead of virtual time", aheadOf(policy)],
    ["throttles", "throttles", rate("throttles")],
    ["blocks", "waits for a slot", rate("blocks")],
    ["waiting", "waiting + on the device", `${total("staged")} + ${total("in_flight") - total("staged")}`],
    ["errors", "failed", count(total("errors"))],
    ["stores", "stores (weights count within each)", stuck.length ? `stuck: ${stuck.map((s) => s.name).join(", ")}` : String(stores.length)],
  ];
  function total(key) {
    return tenants.reduce((all, t) => all + t[key], 0);
  }
  const list = $("device");
  if (!list.children.length) {
    for (const [key, name] of tiles) list.append(make("div", {}, make("dt", {}, name), make("dd", { "data-of": key })));
    list.querySelector("[data-of=slots]").after(make("dd", { hidden: "" }, make("meter", { id: "meter", min: 0, "aria-label": "slots in use" })));
  }
  for (const [key, , text] of tiles) put(list.querySelector(`[data-of=${key}]`), text);
  $("meter").parentElement.hidden = policy.slots === null;
  if (policy.slots !== null) {
    $("meter").max = policy.slots;
    $("meter").value = policy.slots_in_use;
  }
  const connections = status.connections === 1 ? "1 connection" : `${status.connections} connections`;
  const draining = status.draining ? " · draining: the server ends when its last client disconnects" : "";
  put($("server"), `${status.device} · ${status.policy} · ${connections} · up ${up(status.uptime_s)}${draining}`);
}
const slotsOf = (policy) => (policy.slots === null ? "no limit" : `${policy.slots_in_use} of ${policy.slots}`);
const aheadOf = (policy) =>
  (policy.virtual_time_spread === null ? "–" : scaled(policy.virtual_time_spread, [" B", " kB", " MB", " GB"]).join(""));

// If there are several stores, each has a policy of its own.
function stores() {
  const { status, tenants } = state.look;
  const all = status.stores ?? [];
  $("stores").hidden = all.length < 2;
  if (all.length < 2) return;
  const line = ({ name, policy_state: policy, tenants: names }) => make("tr", { "data-store": name },
    make("th", { scope: "row" }, name), make("td", {}, String(names.length)), make("td", {}, slotsOf(policy)),
    make("td", {}, why(policy.depth, tenants.filter((t) => t.store === name))), make("td", {}, aheadOf(policy)));
  $("store-rows").replaceChildren(...all.map(line));
}
function why(depth, tenants) {
  const bounds = tenants.map((t) => t.latency_target?.slots_bound).filter((bound) => typeof bound === "number");
  if (bounds.length) return `${Math.min(...bounds)} for latency targets`;
  if (depth === null) return "set, or none";
  const does = `${count(depth.requests_per_s)} IOPS, ${bandwidth(depth.bytes_per_s)}`;
  return {
    searching: "searching",
    found: `${depth.slots} fill the device: ${does}`,
    "all-demand": "all is on the device",
    alone: "one tenant alone",
  }[depth.state];
}
function ratio(policy) {
  const classes = policy.class_weights;
  return classes ? classes.high / Math.max(1, classes.low) : null;
}
function up(seconds) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => seconds >= size);
  if (first < 0) return "0 s";
  return parts.slice(first, first + 2).map(([size, name], index) => {
    const whole = Math.floor((index ? seconds % parts[first][0] : seconds) / size);
    return `${whole} ${name}`;
  }).join(" ");
}

// ---- Charts.

// Points of a value over time, in runs between gaps.
function runs(value) {
  const all = [[]];
  for (const moment of state.history) {
    const y = moment.look ? value(moment) : null;
    if (y === null || y === undefined || !Number.isFinite(y)) all.push([]);
    else all.at(-1).push([moment.at, y]);
  }
  return all.filter((run) => run.length);
}

// `series`: { slot, kind, points }; `axis`: { low, high, ticks: [[value, text]], scale, none: the text of an empty chart }.
// `limit`: the value of a horizontal line, or null. Charts with `limit` show a value of the policy, charts without it show tenants.
function chart(id, label, axis, series, limit) {
  const svg = $(id);
  const width = Math.max(200, svg.clientWidth), height = Math.max(120, svg.clientHeight);
  const left = 52, right = width - 22, top = 10, bottom = height - 20;
  const now = state.history.at(-1).at;
  const span = Math.min(SPAN, Math.max(SPAN_MIN, now - state.history[0].at));
  const x = (at) => right - ((now - at) / span) * (right - left);
  const y = (value) => bottom - ((axis.scale(value) - axis.scale(axis.low)) / (axis.scale(axis.high) - axis.scale(axis.low))) * (bottom - top);
  const parts = [];
  const isEmpty = !series.some(({ points }) => points.length);
  for (const [value, text] of isEmpty ? [] : axis.ticks) {
    parts.push(draw("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: "grid" }));
    parts.push(draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, text));
  }
  for (const seconds of isEmpty ? [] : [span, span / 2, 0]) {
    const text = seconds ? `${Math.round(seconds)} s ago` : "now";
    const anchor = seconds === span ? "start" : seconds ? "middle" : "end";
    parts.push(draw("text", { x: x(now - seconds), y: height - 5, "text-anchor": anchor }, text));
  }
  if (typeof limit === "number") parts.push(draw("line", { x1: left, x2: right, y1: y(limit), y2: y(limit), class: "limit" }));
  const ends = [];
  const isOfTenants = limit === undefined;
  for (const { slot, kind, points } of series) {
    for (const [index, run] of points.entries()) {
      const inside = run.filter(([at]) => at >= now - span);
      if (!inside.length) continue;
      const d = inside.map(([at, value], i) => `${i ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
      parts.push(draw("path", { d: inside.length === 1 ? `${d}h.01` : d, class: `${kind} t${slot}` }));
      if (!isOfTenants) continue;
      // The tenant's shape near the start of the line and every 30 s, at other moments for each tenant; filled on solid lines, hollow
      // on others. A solid line also has the tenant's letter at its end.
      const isWhole = kind === "line";
      const first = isWhole ? 0 : Math.min(slot + 1, inside.length - 1);
      inside.forEach(([at, value], i) => {
        if (i === first || (Math.round(at) + slot * 5 + (isWhole ? 0 : 15)) % 30 === 0) parts.push(mark(slot, x(at), y(value), isWhole));
      });
      if (!isWhole) continue;
      const [at, value] = inside.at(-1);
      if (index === points.length - 1 && at >= now - 3) ends.push([slot, x(at), y(value)]);
    }
  }
  // Letters at the ends, apart from each other.
  ends.sort((a, b) => a[2] - b[2]);
  let free = top;
  for (const [slot, at, height] of ends) {
    free = Math.max(free, height);
    parts.push(draw("text", { x: at + 7, y: free + 4, class: `letter t${slot}` }, LETTERS[slot]));
    free += 12;
  }
  if (isEmpty) {
    parts.push(draw("text", { x: (left + right) / 2, y: (top + bottom) / 2, "text-anchor": "middle", class: "none" }, axis.none));
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-label", label);
  svg.replaceChildren(...parts);
}
function mark(slot, x, y, isWhole) {
  return draw("path", { d: SHAPES[slot], class: `${isWhole ? "shape" : "hollow"} t${slot}`, transform: `translate(${(x - 4.9).toFixed(1)} ${(y - 4.9).toFixed(1)}) scale(.7)` });
}

// An axis from 0 to at least `most`, with round numbers.
function upTo(most, write, none) {
  const step = [1, 2, 5].flatMap((m) => [m / 100, m / 10, m, m * 10, m * 100, m * 1000]).sort((a, b) => a - b).find((s) => most / s <= 4) || most / 4;
  const steps = Math.max(1, Math.ceil(most / step - 1e-9));
  const ticks = Array.from({ length: steps + 1 }, (_, i) => [i * step, write(i * step)]);
  return { low: 0, high: steps * step, ticks, scale: (value) => value, none };
}
function decades(values, write, none) {
  const low = Math.floor(Math.log10(Math.max(1, Math.min(...values, 1e6))));
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(1, ...values))));
  const ticks = Array.from({ length: high - low + 1 }, (_, i) => [10 ** (low + i), write(10 ** (low + i))]);
  return { low: 10 ** low, high: 10 ** high, ticks, scale: (value) => Math.log10(Math.max(1, value)), none };
}

function charts() {
  const named = state.slots.map((name, slot) => [name, slot]).filter(([name]) => name !== null);
  const of = (name, value) => runs((moment) => {
    const last = moment.tenants.get(name);
    return last ? value(last) : null;
  });
  const lines = (kind, value) => named.map(([name, slot]) => ({ slot, kind, points: of(name, value) }));
  const series = [...lines("due", (t) => t.entitled), ...lines("line", (t) => t.share)];
  const most = (all) => Math.max(0, ...all.flatMap(({ points }) => points.flat()).map(([, y]) => y));
  const shares = upTo(Math.min(1, Math.max(0.1, most(series))), (v) => Math.round(100 * v) + " %", "no tenant sends requests");
  const tell = (value, write) => named.map(([name]) => {
    const last = state.look.tenants.find((t) => t.name === name)?.last_second;
    return `${name} ${last ? write(last) : "idle"}`;
  }).join(", ");
  chart("chart-share", "Shares: " + tell(null, (t) => `${percent(t.share)} of ${percent(t.entitled)} due`), shares, series);
  const slow = [...lines("low", (t) => t.p50_ns), ...lines("line", (t) => t.p99_ns)];
  const values = slow.flatMap(({ points }) => points.flat()).map(([, y]) => y);
  chart("chart-latency", "Latency: " + tell(null, (t) => `p50 ${time(t.p50_ns)}, p99 ${time(t.p99_ns)}`),
    decades(values, (v) => time(v).replace(/\.0+ /, " "), "no tenant sends requests"), slow);
  const policy = state.look.status.policy_state;
  const one = (value) => [{ slot: 0, kind: "line", points: runs((moment) => value(moment.look.status.policy_state)) }];
  const slots = policy.slots ?? 1;
  chart("chart-slots", policy.slots === null ? "No limit of slots" : `Slots: ${policy.slots_in_use} of ${policy.slots} in use`,
    upTo(slots, (v) => three(v).replace(/\.0+$/, ""), "this policy has no slots"), one((p) => p.slots_in_use), policy.slots);
  const classes = one(ratio);
  chart("chart-classes", ratio(policy) === null ? "No classes" : `H/L: ${three(ratio(policy))}`,
    upTo(Math.max(2, most(classes)), (v) => three(v).replace(/\.0+$/, ""), "this policy uses no queue classes"), classes, null);
  const key = $("key");
  const wanted = named.map(([name, slot]) => `${slot}${name}`).join("\n");
  if (key.dataset.of !== wanted) {
    key.dataset.of = wanted;
    key.replaceChildren(...named.map(([name, slot]) => make("li", { class: `t${slot}` }, symbol(slot),
      make("b", {}, LETTERS[slot] + " "), make("span", { class: "name" }, name))));
    const rest = state.look.tenants.length - named.length;
    if (rest > 0) key.append(make("li", {}, `and ${rest} more in the table`));
  }
}

// ---- The table.

const COLUMNS = [
  ["weight"], ["due", (t) => percent(t.entitled)], ["share"], ["iops", (t) => count(t.iops), "IOPS"],
  ["bandwidth", (t) => bandwidth(t.bytes_per_s)], ["p50", (t) => time(t.p50_ns)], ["p99", (t) => time(t.p99_ns)],
  ["target"], ["staged", (t) => time(t.staged_ns)], ["device", (t) => time(t.device_ns)], ["queue"], ["failed"], ["hurt"],
];
const ORDERS = {
  share: (t) => t.last_second?.share ?? -1, weight: (t) => t.weight, iops: (t) => t.last_second?.iops ?? -1,
  p99: (t) => t.last_second?.p99_ns ?? -1,
};
const rows = new Map();

function row(name) {
  const tr = make("tr", { "data-tenant": name });
  const cells = { name: make("td", { "data-label": "tenant" }) };
  for (const [key, , label] of COLUMNS) cells[key] = make("td", { "data-label": key === "hurt" ? "hurt by" : label || key, "data-of": key });
  const bar = draw("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  const got = draw("rect", { class: "got", x: 0, y: 0, height: 10, width: 0 });
  const due = draw("line", { class: "due", y1: 0, y2: 10, "vector-effect": "non-scaling-stroke" });
  bar.append(got, due);
  const share = make("span");
  cells.share.append(bar, share);
  const promised = make("small", { class: "promised" });
  const text = make("span");
  const input = make("input", { type: "number", min: 1, max: 10000, step: 1, "aria-label": `weight of ${name}` });
  cells.weight.append(text, input);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      weigh(name, input);
    } else if (event.key === "Escape") {
      input.blur();
      table();
    }
  });
  input.addEventListener("change", () => weigh(name, input));
  tr.append(cells.name, ...COLUMNS.map(([key]) => cells[key]));
  return { tr, cells, got, due, share, bar, promised, text, input, slot: undefined };
}

function fill(tenant) {
  let known = rows.get(tenant.name);
  if (!known) rows.set(tenant.name, (known = row(tenant.name)));
  const { cells, got, due, share, bar, promised, text, input } = known;
  const slot = state.slots.indexOf(tenant.name);
  if (known.slot !== slot) {
    known.slot = slot;
    cells.name.replaceChildren(...(slot < 0 ? [] : [symbol(slot)]), make("span", { class: "name" }, tenant.name), promised);
  }
  const store = (state.look.status.stores ?? []).length > 1 ? tenant.store : null;
  put(promised, [store, tenant.promised, ...tenant.attachments.map(attached)].filter(Boolean).join(" · "));
  const last = tenant.last_second;
  const mayWrite = state.write === "token" && $("token").value !== "";
  put(text, mayWrite ? "" : String(tenant.weight));
  input.hidden = !mayWrite;
  // A number that the user is typing is not overwritten.
  if (document.activeElement !== input) input.value = tenant.weight;
  for (const [key, write] of COLUMNS) if (write) put(cells[key], last ? write(last) : "–");
  bar.toggleAttribute("hidden", !last);
  put(share, last ? percent(last.share) : "–");
  got.setAttribute("width", last ? 100 * last.share : 0);
  for (const end of ["x1", "x2"]) due.setAttribute(end, last ? 100 * last.entitled : 0);
  put(cells.queue, `${tenant.staged}+${tenant.in_flight - tenant.staged}`);
  put(cells.failed, count(tenant.errors));
  const target = tenant.latency_target;
  put(cells.target, target ? beside(target) : "–");
  cells.target.classList.toggle("missed", isMissed(target));
  cells.target.title = target ? within(target) + (target.cause ? `: ${target.cause}` : "") : "";
  const worst = Object.entries(tenant.hurt_by || {}).filter(([name]) => name !== tenant.name).sort((a, b) => b[1] - a[1])[0];
  put(cells.hurt, worst ? `${worst[0]} ${percent(worst[1])}` : "–");
  return known.tr;
}

// A block device, or a guest's socket.
function attached({ kind, path, connected, queues, error }) {
  if (kind === "ublk") return error ? `${path}: there is none: ${error}` : path;
  return `${kind}: ${connected ? `a guest with ${queues} ${queues === 1 ? "queue" : "queues"}` : "no guest"}`;
}

// ---- Latency targets.

const isMissed = (target) => Boolean(target) && !["met", "idle"].includes(target.state);
const within = (target) => `${target.percentile} % within ${time(target.target_ns)}`;
function beside(target) {
  const state = target.state.startsWith("unreachable") ? "unreachable" : target.state;
  return `${isMissed(target) ? "▲\u00a0" : ""}${time(target.target_ns).replace(" ", "\u00a0")} ${state}`;
}
// Lists the missed targets; the first few with their causes in words.
function targets() {
  const missed = state.look.tenants.filter((t) => isMissed(t.latency_target));
  const told = missed.slice(0, TOLD).map(({ name, latency_target: of }) => {
    const late = percent(of.late / Math.max(1, of.completed));
    const cause = of.cause ?? "other tenants are throttled for it";
    return make("li", { "data-tenant": name }, make("b", {}, name), `: ${late} of its requests were later than ${time(of.target_ns)}, `
      + `${percent(1 - of.percentile / 100)} may be: ${cause}`);
  });
  if (missed.length > TOLD) told.push(make("li", {}, `and ${missed.length - TOLD} more, marked in the table`));
  const list = $("missed");
  const isSame = told.length === list.children.length && told.every((li, i) => li.textContent === list.children[i].textContent);
  if (!isSame) list.replaceChildren(...told);
  list.hidden = !told.length;
  $("table").classList.toggle("no-targets", !state.look.tenants.some((t) => t.latency_target));
}

// ---- Groups of tenants.

function groups() {
  const all = state.look.groups || [];
  $("groups").hidden = !all.length;
  const line = ({ name, weight, active, members, promised }) => make("tr", { "data-group": name },
    make("th", { scope: "row" }, name), make("td", {}, String(weight)), make("td", {}, `${active} of ${members}`),
    make("td", { class: "promised" }, promised || "–"));
  $("group-rows").replaceChildren(...all.slice(0, state.shown).map(line));
}

function table() {
  if (!state.look) return;
  const find = $("find").value.trim().toLowerCase();
  const order = ORDERS[$("sort").value];
  const by = (a, b) => (order ? order(b) - order(a) : 0) || a.name.localeCompare(b.name);
  const found = state.look.tenants.filter((t) => t.name.toLowerCase().includes(find)).sort(by);
  const shown = found.slice(0, state.shown);
  const names = new Set(state.look.tenants.map((t) => t.name));
  for (const name of rows.keys()) if (!names.has(name)) rows.delete(name);
  const body = $("rows");
  const trs = shown.map(fill);
  // While the user types a weight the rows stay in their order, because the field would lose the focus otherwise.
  const isTyping = body.contains(document.activeElement);
  const same = trs.length === body.children.length && trs.every((tr, i) => body.children[i] === tr);
  if (!same && !isTyping) body.replaceChildren(...trs);
  const rest = found.length - shown.length;
  $("more").hidden = rest <= 0;
  put($("more"), `Show ${Math.min(ROWS, rest)} more of ${rest}`);
  $("token-label").hidden = state.write !== "token";
  $("read-only").hidden = state.write === "token";
}

// ---- The matrix.

function matrix() {
  const tenants = state.look.tenants;
  const weight = new Map();
  for (const t of tenants) {
    for (const [by, part] of Object.entries(t.hurt_by || {})) weight.set(by, (weight.get(by) || 0) + (by === t.name ? 0 : part));
    if (t.hurt_by) weight.set(t.name, (weight.get(t.name) || 0) + 0.001);
  }
  const named = tenants.map((t) => t.name).filter((name) => weight.has(name));
  const most = named.sort((a, b) => weight.get(b) - weight.get(a)).slice(0, MATRIX).sort((a, b) => a.localeCompare(b));
  const hasRest = [...weight.keys()].some((name) => !most.includes(name));
  const columns = hasRest ? [...most, "others"] : most;
  // A long name is only at its row, with a number; the head of its column has the number.
  const isLong = most.some((name) => name.length > 9);
  const short = (name) => (isLong && most.includes(name) ? String(most.indexOf(name) + 1) : name);
  const head = make("tr", {}, make("td"), ...columns.map((name) => make("th", { scope: "col", title: name }, short(name))));
  const body = most.map((name) => {
    const by = tenants.find((t) => t.name === name).hurt_by;
    const cells = columns.map((other) => {
      const others = () => Object.entries(by || {}).filter(([n]) => !most.includes(n)).reduce((sum, [, p]) => sum + p, 0);
      const part = by ? (other === "others" && !most.includes(other) ? others() : by[other] || 0) : null;
      const cell = make("td", { "data-by": other }, part === null ? "–" : String(Math.round(100 * part)));
      if (part) cell.style.backgroundColor = `rgb(var(--heat) / ${(0.55 * part).toFixed(2)})`;
      if (other === name) cell.className = "own";
      return cell;
    });
    const title = isLong ? `${short(name)} ${name}` : name;
    return make("tr", { "data-tenant": name }, make("th", { scope: "row" }, title), ...cells);
  });
  $("matrix").replaceChildren(...(most.length ? [make("thead", {}, head), make("tbody", {}, ...body)] : []));
  put($("matrix-rest"), most.length ? (hasRest ? `The ${most.length} tenants with the largest delays. Dashed: the part during which a tenant's own requests were served.`
    : "Dashed: the part during which a tenant's own requests were served.") : "No tenant's requests waited in the last ten seconds.");
}

// ---- Changing a weight.

async function weigh(name, input) {
  const tenant = state.look.tenants.find((t) => t.name === name);
  const weight = input.value.trim();
  // A change event follows the Enter key: a number that was just sent is not sent again.
  if (!tenant || weight === String(tenant.weight) || input.dataset.sent === weight) return;
  input.dataset.sent = weight;
  say("");
  try {
    const answer = await fetch("weight", {
      method: "POST", cache: "no-store", credentials: "omit", redirect: "error",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${$("token").value}` },
      body: JSON.stringify({ tenant: name, weight }),
    });
    const said = await answer.json();
    if (answer.ok) {
      tenant.weight = said.to;
      say(`${name}: weight ${said.from} → ${said.to}`, true);
    } else say(`${name}: not changed: ${said.error}`);
  } catch {
    say(`${name}: not changed: the server does not answer`);
  }
  // The value is set before the field loses the focus, because a value that differs then causes a change event, and would be sent.
  input.value = tenant.weight;
  input.blur();
  delete input.dataset.sent;
  table();
}
function say(text, good) {
  $("said").classList.toggle("good", Boolean(good));
  put($("said"), text);
}

// ---- The clock.

function show() {
  if (!state.look) return;
  choose();
  device();
  stores();
  charts();
  targets();
  groups();
  table();
  matrix();
}
function tell() {
  const [word, text] = state.gone
    ? ["gone", `the server has not answered since ${state.gone.toLocaleTimeString()}; trying again each second. The page shows the state of that time`]
    : state.paused ? ["paused", "paused"] : state.look ? ["live", "live"] : ["waiting", "waiting for the server"];
  document.body.classList.toggle("gone", word === "gone");
  $("state").dataset.state = word;
  put($("state"), text);
}

async function ask() {
  clearTimeout(state.again);
  // A hidden tab sends no requests; it continues when it is visible again (visibilitychange).
  if (state.paused || document.hidden) return;
  const began = performance.now();
  try {
    const answer = await fetch("look.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!answer.ok) throw new Error(answer.statusText);
    const look = await answer.json();
    state.write = answer.headers.get("fairq-write");
    state.gone = null;
    // The data are those of the server's last full second. The same second may come twice, and is then stored once.
    const isNews = look.status.uptime_s !== state.look?.status.uptime_s;
    if (isNews) state.previous = state.look;
    state.look = look;
    if (isNews) remember(look);
    show();
  } catch {
    state.gone ??= new Date();
    miss();
  }
  tell();
  clearTimeout(state.again);
  state.again = setTimeout(ask, Math.max(50, PERIOD_MS - (performance.now() - began)));
}

$("pause").addEventListener("click", () => {
  state.paused = !state.paused;
  $("pause").setAttribute("aria-pressed", state.paused);
  put($("pause"), state.paused ? "Continue" : "Pause");
  if (state.paused) miss();
  tell();
  ask();
});
document.addEventListener("visibilitychange", ask);
addEventListener("resize", () => state.look && charts());
$("tools").addEventListener("submit", (event) => event.preventDefault());
$("find").addEventListener("input", () => {
  state.shown = ROWS;
  table();
});
$("sort").addEventListener("change", table);
$("token").addEventListener("input", table);
$("more").addEventListener("click", () => {
  state.shown += ROWS;
  table();
});
tell();
ask();
