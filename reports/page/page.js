// Tables: sorting and filtering. The page is complete without this script; charts/ draws.
"use strict";

// ---- sorting: a button in every header cell

// The number that a cell shows: "2^16", "42.1%", "+0.005", "1,024", "3.2 s", "7 (80%)"; "." is none. NaN: no number.
function numberOf(text) {
  if (text === ".") return 0;
  const power = /^2\^(-?\d+)/.exec(text);
  if (power) return 2 ** Number(power[1]);
  const minutes = /^(\d+) min (\d+) s$/.exec(text);
  if (minutes) return 60 * Number(minutes[1]) + Number(minutes[2]);
  return parseFloat(text.replace(/(\d)[ ,](?=\d{3}\b)/g, "$1"));
}

function sortBy(table, header, column) {
  const down = header.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const isNumber = header.classList.contains("number");
  const rows = [...table.tBodies[0].rows].map((row) => {
    const text = row.cells[column].textContent;
    return {row, text, number: isNumber ? numberOf(text) : NaN};
  });
  const sign = down ? -1 : 1;
  rows.sort((a, b) => {
    if (!isNumber) return sign * a.text.localeCompare(b.text, "en", {numeric: true});
    if (Number.isNaN(a.number) || Number.isNaN(b.number)) {  // last in both directions
      return Number.isNaN(a.number) - Number.isNaN(b.number);
    }
    return sign * (a.number - b.number);
  });
  table.tBodies[0].append(...rows.map((entry) => entry.row));
}

for (const table of document.querySelectorAll("table")) {
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    if (header.textContent === "" || table.tBodies[0].rows.length < 2) return;
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Sort by this column";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => sortBy(table, header, column));
  });
}

// ---- filter: rows of all tables in which every word occurs; * stands for anything

function matcherOf(word) {
  const parts = word.split("*").map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(parts.join(".*"), "i");
}

const filter = document.getElementById("filter");
const label = document.createElement("label");
const input = document.createElement("input");
const count = document.createElement("p");
input.type = "search";
input.id = "filter-text";
input.placeholder = "conv* weight";
label.htmlFor = input.id;
label.textContent = "Show table rows with";
count.setAttribute("aria-live", "polite");
filter.append(label, input, count);
filter.hidden = false;
input.addEventListener("input", () => {
  const words = input.value.split(/\s+/).filter(Boolean).map(matcherOf);
  let shown = 0, all = 0;
  for (const row of document.querySelectorAll("tbody tr")) {
    const text = [...row.cells].map((cell) => cell.textContent).join(" ");
    row.hidden = !words.every((word) => word.test(text));
    all += 1;
    shown += !row.hidden;
  }
  count.textContent = words.length ? `${shown} of ${all} rows` : "";
});
