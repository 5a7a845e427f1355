// Deep links: #SECTION, #FIGURE and #FIGURE=CHOICE/CHOICE, and the links that open a histogram.
// A chart that has a state registers {get, set}; its choices are text, escaped as in any URL.

const charts = new Map();  // by the figure's id
let histogram = null;      // the id of the one that shows histograms

// Registers the page's histograms, before any chart is drawn.
export function announceHistogram(figure) {
  histogram ??= figure.id;
}

// get() gives the choices as text, set(choices) shows them; false if there is nothing of that name.
export function register(figure, {get, set}) {
  charts.set(figure.id, {figure, get, set});
}

const encoded = (choices) => choices.map((choice) => encodeURIComponent(choice)).join("/");

// Writes a chart's state into the address, without a new entry in the browser's history.
export function remember(figure) {
  const {get} = charts.get(figure.id);
  history.replaceState(null, "", `#${figure.id === histogram ? "histogram" : figure.id}=${encoded(get())}`);
}

function reveal(figure) {
  const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  figure.scrollIntoView({behavior: isCalm ? "auto" : "smooth", block: "start"});
}

export const canOpenHistogram = () => histogram !== null;

// Shows the histogram of a site and goes there; a new entry in the history, so that "back" returns.
export function openHistogram(lane, site) {
  if (histogram === null) return;
  const {figure, set} = charts.get(histogram);
  if (!set([lane, `${site}`])) return;
  history.pushState(null, "", `#histogram=${encoded([lane, `${site}`])}`);
  reveal(figure);
  figure.querySelector(".plot")?.focus({preventScroll: true});
}

function follow() {
  const [name, state] = location.hash.slice(1).split("=");
  const chart = charts.get(name === "histogram" && state !== undefined ? histogram : name);
  if (!chart || state === undefined) return;
  let choices;
  try {
    choices = state.split("/").map(decodeURIComponent);
  } catch {
    return;  // not written by this page
  }
  if (chart.set(choices)) chart.figure.scrollIntoView({block: "start"});
}

// After all charts have registered.
export function followLinks() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a.open-histogram");
    if (!link || event.ctrlKey || event.metaKey || !canOpenHistogram()) return;
    event.preventDefault();
    openHistogram(link.dataset.lane, link.dataset.site);
  });
  window.addEventListener("hashchange", follow);
  window.addEventListener("popstate", follow);
  follow();
}
