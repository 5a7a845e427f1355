// Legends: a button per name that hides or shows it; entries that only explain a sign.
import {element, svg} from "./dom.js";

// A piece of line as in the chart.
export function lineSwatch({color, dash, width = 2}) {
  return svg(
      "svg", {class: "swatch", width: 28, height: 8, viewBox: "0 0 28 8", "aria-hidden": "true"},
      svg("path",
          {d: "M1 4H27", style: `stroke: ${color}; stroke-width: ${width}`, "stroke-dasharray": dash.join(" ")}));
}

export function boxSwatch(color, outline = "none") {
  return svg(
      "svg", {class: "swatch", width: 14, height: 12, viewBox: "0 0 14 12", "aria-hidden": "true"},
      svg("rect", {x: 1, y: 1, width: 12, height: 10, style: `fill: ${color}; stroke: ${outline}`}));
}

export function signSwatch(path, color) {
  return svg(
      "svg", {class: "swatch", width: 14, height: 12, viewBox: "0 0 14 12", "aria-hidden": "true"},
      svg("path", {d: path, style: `fill: ${color}; stroke: ${color}`}));
}

// entries: {swatch, name, onToggle(isShown)}; without onToggle it is only a sign.
export function legend(entries) {
  return element("ul", {class: "legend"}, ...entries.map(({swatch, name, onToggle}) => {
    if (!onToggle) return element("li", {}, swatch, name);
    const button = element("button", {type: "button", "aria-pressed": "true", title: "Show or hide"}, swatch, name);
    button.addEventListener("click", () => {
      const isShown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", `${isShown}`);
      onToggle(isShown);
    });
    return element("li", {}, button);
  }));
}
