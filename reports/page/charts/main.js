// Draws every chart of the page: each figure holds its data as JSON, and a table.
import {drawCurves} from "./curves.js";
import {element} from "./dom.js";
import {drawHeatMap} from "./heat_map.js";
import {drawHistograms} from "./histograms.js";
import {drawIntervals} from "./intervals.js";
import {announceHistogram, followLinks} from "./links.js";
import {drawScatter} from "./scatter.js";

const draw = {
  curves: drawCurves,
  "heat map": drawHeatMap,
  histograms: drawHistograms,
  intervals: drawIntervals,
  scatter: drawScatter,
};

const figures = [...document.querySelectorAll("figure.chart")].map(
    (figure) => ({figure, data: JSON.parse(figure.querySelector("script").textContent)}));
for (const {figure, data} of figures) {
  if (data.kind === "histograms") announceHistogram(figure);
}
for (const {figure, data} of figures) {
  const caption = figure.querySelector("figcaption");
  const place = element("div", {class: "drawn"});
  caption.after(place);
  try {
    draw[data.kind](place, data, caption.textContent, figure);
  } catch (error) {
    place.replaceChildren(element("p", {class: "note"}, "This chart could not be drawn. Its table follows."));
    figure.querySelector("details").open = true;
    console.error(error);
  }
}
followLinks();
