// The place of a chart on the page: follows the page's width, prints, takes the keyboard.
import {element} from "./dom.js";
import {init} from "./echarts.js";
import {color, kFont, kFontSize} from "./theme.js";

const kPrintWidth = 690;  // CSS pixels, of A4 with margins

const plots = [];

// Adds a chart of this height to `parent`. `options(width)` gives ECharts' options: called again by
// redraw() and when the width changes. Returns {chart, box, options, redraw}.
export function plot(parent, {label, height, options}) {
  const box = element("div", {
    class: "plot",
    tabindex: "0",
    role: "application",
    "aria-roledescription": "chart",
    "aria-label": label,
  });
  parent.append(box);
  const sizeNow = (width) => ({width, height: typeof height === "function" ? height(width) : height});
  const first = sizeNow(box.clientWidth || kPrintWidth);
  box.style.height = `${first.height}px`;
  const chart = init(box, null, {renderer: "svg", ...first});
  const made = {chart, box, options, width: first.width};
  made.redraw = () => chart.setOption({...common(), ...made.options(made.width)}, {notMerge: true});
  made.resize = (width) => {
    if (!width || width === made.width) return;
    made.width = width;
    const size = sizeNow(width);
    box.style.height = `${size.height}px`;
    chart.resize(size);
    made.redraw();
  };
  made.redraw();
  // The axes' own lines and labels repeat what the label and the table say.
  box.firstElementChild.setAttribute("aria-hidden", "true");
  new ResizeObserver(() => {
    if (!isPrinting) made.resize(box.clientWidth);
  }).observe(box);
  plots.push(made);
  return made;
}

function common() {
  return {animation: false, textStyle: {fontFamily: kFont, fontSize: kFontSize}};
}

// What all tooltips have in common.
export const tooltip = (more) => ({
  confine: true,
  transitionDuration: 0,
  backgroundColor: color("paper"),
  borderColor: color("soft"),
  borderWidth: 1,
  padding: [6, 10],
  textStyle: {color: color("ink"), fontSize: kFontSize, fontFamily: kFont},
  extraCssText: "box-shadow: none; border-radius: 4px; max-width: 30rem; white-space: normal;",
  ...more,
});

// Shows the tip of an item, by its index. Given pixels, ECharts also updates its axis pointers, and a chart
// whose axes have no tip then hides this one after 100 ms.
export function showTip(chart, seriesIndex, dataIndex) {
  chart.dispatchAction({type: "showTip", seriesIndex, dataIndex});
}

// Arrow keys and others; `keys` gives a function per key.
export function onKeys(box, keys) {
  box.addEventListener("keydown", (event) => {
    const action = keys[event.key];
    if (!action || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    action(event);
  });
}

let isPrinting = false;
window.addEventListener("beforeprint", () => {
  isPrinting = true;
  for (const one of plots) {
    one.beforePrint = one.width;
    one.chart.dispatchAction({type: "hideTip"});
    one.resize(kPrintWidth);
  }
});
window.addEventListener("afterprint", () => {
  for (const one of plots) one.resize(one.box.clientWidth > kPrintWidth ? one.box.clientWidth : one.beforePrint);
  isPrinting = false;
});
