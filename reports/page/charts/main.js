// Draws every chart of the page: each figure holds its data as JSON, and a table.
import {drawCurves} from "./curves.js";
import {element} from "./dom.js";
import {drawHeatMap} from "./heat_map.js";
import {drawHistograms} from "./histograms.js";
import {followLinks} from "./links.js";

const draw = {curves: drawCurves, "heat map": drawHeatMap, histograms: drawHistograms};

for (const figure of document.querySelectorAll("figure.chart")) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const caption = figure.querySelector("figcaption");
  const place = element("div", {class: "drawn"});
  caption.after(place);
  if (!draw[data.kind]) continue;
  try {
    draw[data.kind](place, data, caption.textContent, figure);
  } catch (error) {
    place.replaceChildren(element("p", {class: "note"}, "This chart could not be drawn. Its table follows."));
    figure.querySelector("details").open = true;
    console.error(error);
  }
}
followLinks();
