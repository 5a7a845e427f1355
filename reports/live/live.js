// Shows /snapshot.json once a second. Text from the run only ever becomes text nodes.
"use strict";

const kEveryMs = 1000;
// Okabe and Ito's colours: told apart by colour-blind people, on white and on black.
const kColours = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const kDashes = ["", "6 3", "2 3", "8 3 2 3"];

const byId = (id) => document.getElementById(id);
const colour = (index) => kColours[index % kColours.length];
const dash = (index) => kDashes[Math.floor(index / kColours.length) % kDashes.length];

function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function svg(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function number(value) {
  if (value === null || value === undefined) return "not finite";
  return Math.abs(value) >= 1e4 ? value.toExponential(3) : value.toFixed(4);
}

function scale(value) {
  if (value === undefined) return "";
  if (value !== null && typeof value === "object") return Object.values(value).map(scale).join(", ");
  const exponent = Math.log2(value);
  return Number.isInteger(exponent) ? `2^${exponent}` : String(value);
}

// Curves of {values} over the steps of the course; null is a gap. Drawn as wide as the page is now, so
// that text keeps its size. `ticks` gives the values on the vertical axis.
function draw(figure, steps, curves, label, ticks = (low, high) => [low, (low + high) / 2, high]) {
  const width = Math.max(240, figure.clientWidth), height = 256, left = 64, right = 8, bottom = 24, top = 12;
  const finite = curves.flatMap((c) => c.values).filter((v) => v !== null && Number.isFinite(v));
  figure.replaceChildren();
  if (finite.length === 0 || steps.length === 0) {
    if (steps.length > 0) figure.append(make("p", "No finite values."));
    return;
  }
  let low = Math.min(...finite), high = Math.max(...finite);
  if (low === high) [low, high] = [low - 1, high + 1];
  const first = steps[0], last = Math.max(steps[steps.length - 1], first + 1);
  const x = (step) => left + (step - first) / (last - first) * (width - left - right);
  const y = (value) => top + (high - value) / (high - low) * (height - top - bottom);
  const picture = svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img"});
  for (const value of ticks(low, high)) {
    picture.append(svg("line", {x1: left, x2: width, y1: y(value), y2: y(value), class: "axis"}));
    picture.append(svg("text", {x: left - 8, y: y(value) + 4, "text-anchor": "end"}, label(value)));
  }
  picture.append(svg("text", {x: left, y: height - 6}, `step ${first}`));
  picture.append(svg("text", {x: width - right, y: height - 6, "text-anchor": "end"}, `step ${last}`));
  curves.forEach((curve, index) => {
    let path = "", open = false;
    curve.values.forEach((value, i) => {
      const shown = value !== null && Number.isFinite(value);
      if (shown) path += `${open ? "L" : "M"}${x(steps[i]).toFixed(1)} ${y(value).toFixed(1)}`;
      open = shown;
    });
    picture.append(svg("path", {d: path, stroke: colour(index), "stroke-dasharray": dash(index)}));
  });
  figure.append(picture);
}

// At most five whole numbers: exponents.
function wholeTicks(low, high) {
  const step = Math.max(1, Math.ceil((high - low) / 4)), ticks = [];
  for (let k = Math.ceil(low); k <= high; k += step) ticks.push(k);
  return ticks;
}

const scalesOf = (lane) => lane.scales ?? [];
const isScaled = (lane) => scalesOf(lane).some((value) => value !== 1);

function laneRow(lane, index) {
  const row = make("tr"), name = make("td"), key = make("span", "", "key");
  key.style.borderTopColor = colour(index);
  if (dash(index)) key.style.borderTopStyle = "dashed";
  name.append(key, lane.name);
  row.append(
      name, make("td", "loss" in lane ? number(lane.loss) : "", "number"),
      make("td", isScaled(lane) ? scale(lane.loss_scale) : "", "number"),
      make("td", lane.skipped_steps || "", "number"), make("td", lane.alive ? "" : "stopped", "dead"));
  return row;
}

function skipRows(lanes) {
  const all = lanes.flatMap((lane) => (lane.skips ?? []).map((skip) => ({...skip, lane: lane.name})));
  return all.sort((a, b) => b.step - a.step).map((skip) => {
    const row = make("tr");
    row.append(
        make("td", skip.step, "number"), make("td", skip.lane), make("td", scale(skip.scale), "number"),
        make("td", skip.culprit || "-"), make("td", skip.source_line || ""));
    return row;
  });
}

function findingRows(lanes) {
  return lanes.flatMap((lane) => {
    const told = lane.findings ?? [];
    const rows = told.map((finding) => {
      const row = make("tr");
      row.append(
          make("td", lane.name), make("td", finding.first_step, "number"),
          make("td", `${finding.kind}: ${finding.sentence}`));
      return row;
    });
    const more = (lane.finding_count ?? 0) - told.length;
    if (more > 0) {
      const row = make("tr");
      row.append(make("td", lane.name), make("td", ""), make("td", `+${more} more`));
      rows.push(row);
    }
    return rows;
  });
}

function show(live) {
  byId("run").textContent = live.run;
  document.title = `${live.state}: ${live.run}`;
  byId("state").textContent = live.sentence;
  byId("state").className = live.state;
  byId("commands").replaceChildren(...live.commands.flatMap((c) => [make("span", c.purpose), make("pre", c.command)]));
  const snapshot = live.snapshot;
  if (!snapshot) return;
  byId("progress").value = snapshot.steps ? (snapshot.steps_done ?? 0) / Math.max(1, snapshot.steps) : 1;
  const lanes = snapshot.lanes ?? [], steps = snapshot.course ?? [];
  byId("lanes").tBodies[0].replaceChildren(...lanes.map(laneRow));
  const findings = findingRows(lanes);
  byId("findings").hidden = findings.length === 0;
  byId("no-findings").hidden = findings.length > 0;
  const because = snapshot.no_findings_because;
  byId("no-findings").textContent = because === undefined ? "None." : `They cannot be told: ${because}`;
  byId("findings").tBodies[0].replaceChildren(...findings);
  draw(byId("losses"), steps, lanes.map((lane) => ({values: lane.losses ?? []})), (v) => v.toPrecision(3));
  byId("scales-part").hidden = !lanes.some(isScaled);
  const exponents = (lane) => isScaled(lane) ? scalesOf(lane).map((s) => s > 0 ? Math.log2(s) : null) : [];
  draw(byId("scales"), steps, lanes.map((lane) => ({values: exponents(lane)})), (k) => `2^${k}`, wholeTicks);
  const skips = skipRows(lanes);
  byId("skips-part").hidden = skips.length === 0;
  byId("skips").tBodies[0].replaceChildren(...skips);
}

function complain(text) {
  byId("state").textContent = text;
  byId("state").className = "ended";
}

async function ask() {
  const answer = await fetch("/snapshot.json", {cache: "no-store"});
  if (!answer.ok) throw new Error(`the program answers ${answer.status}`);
  return answer.json();
}

async function refresh() {
  let live = null;
  try {
    live = await ask();
  } catch (error) {
    complain(`No news: lockstep report --live does not answer (${error.message}).`);
  }
  try {
    if (live) show(live);
  } catch (error) {
    complain(`${live.sentence} Its snapshot cannot be shown (${error.message}).`);
  }
  setTimeout(refresh, kEveryMs);
}

refresh();
