// Curves in panels one below the other, on one x axis with one cursor: bands of noise in grey, marks.
import {element, sentence, tip} from "./dom.js";
import {boxSwatch, legend, lineSwatch, signSwatch} from "./legend.js";
import {ending, scale as scaleText, short, stepped} from "./numbers.js";
import {onKeys, plot, tooltip} from "./plot.js";
import {axis, color, gridLines, isNarrow, kFontSize, laneStyles} from "./theme.js";

const kFirstHeight = 250, kNextHeight = 150, kGap = 34, kTop = 26, kBottom = 44;
const kMostMarks = 4;  // that a tooltip names
const kPowers = "powers of two";
// Marks of a loss scale are above its curve, others on theirs.
const kAbove = "M1 1L13 1L7 11Z", kOn = "M2 1L7 5L12 1L13 2L8.4 6L13 10L12 11L7 7L2 11L1 10L5.6 6L1 2Z";
const kDiamond = "M7 1L12 6L7 11L2 6Z";
const markShape = (panel) => (panel.scale === kPowers ? kAbove : kOn);

// The value on the panel's axis; null: nothing can be drawn.
function placed(panel, value) {
  if (value === null || value === undefined) return null;
  if (panel.scale === kPowers) return value > 0 ? Math.log2(value) : null;
  return panel.scale === "logarithmic" && !(value > 0) ? null : value;
}
const valueText = (panel, value) => (panel.scale === kPowers && value !== null ? scaleText(value) : short(value));

// A mark stands on its curve; where that is not finite, on the last value before it.
function markPoint(panel, series, [index, at, text]) {
  let from = Math.min(index, series.values.length - 1);
  while (from >= 0 && placed(panel, series.values[from]) === null) from -= 1;
  return from < 0 ? null : {value: [index, placed(panel, series.values[from])], at, text};
}

function bandSeries(panel, band, index) {
  return {
    type: "custom",
    name: band.name,
    xAxisIndex: index,
    yAxisIndex: index,
    silent: true,
    clip: true,
    z: 1,
    data: [[0, null]],
    tooltip: {show: false},
    renderItem: (params, api) => {
      const top = [], bottom = [];
      band.low.forEach((low, x) => {
        const a = placed(panel, low), b = placed(panel, band.high[x]);
        if (a === null || b === null) return;
        bottom.unshift(api.coord([x, a]));
        top.push(api.coord([x, b]));
      });
      const style = {fill: color("band"), stroke: color("noise"), lineWidth: 0.75};
      return {type: "polygon", shape: {points: [...top, ...bottom]}, style};
    },
  };
}

function lineSeries(panel, series, index, style) {
  return {
    type: "line",
    name: series.name,
    xAxisIndex: index,
    yAxisIndex: index,
    z: 2,
    symbol: "circle",
    symbolSize: 5,
    showSymbol: false,
    step: panel.scale === kPowers ? "end" : false,
    data: series.values.map((value) => placed(panel, value)),
    itemStyle: {color: style.color},
    lineStyle: {
      color: style.color,
      width: style.width,
      type: style.dash.length ? style.dash : "solid",
      opacity: series.isPoints ? 0 : 1
    },
    emphasis: {disabled: true},
    connectNulls: false,
  };
}

// A value between two gaps has no line: a point. Of a series of points, every value.
function pointSeries(panel, series, index, style) {
  const values = series.values.map((value) => placed(panel, value));
  const isAlone = (i) => (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null;
  const isPoint = (i) => values[i] !== null && (series.isPoints || isAlone(i));
  return {
    type: "scatter",
    name: series.name,
    xAxisIndex: index,
    yAxisIndex: index,
    z: 2,
    symbol: series.isPoints ? "diamond" : "circle",
    symbolSize: series.isPoints ? 8 : 6,
    data: values.flatMap((value, i) => (isPoint(i) ? [[i, value]] : [])),
    itemStyle: {color: style.color},
    emphasis: {disabled: true},
  };
}

function markSeries(panel, series, index, style) {
  return {
    type: "scatter",
    name: series.name,
    xAxisIndex: index,
    yAxisIndex: index,
    z: 3,
    symbol: `path://${markShape(panel)}`,
    symbolSize: [12, 10],
    symbolOffset: [0, panel.scale === kPowers ? -8 : 0],
    data: series.marks.map((mark) => markPoint(panel, series, mark)).filter(Boolean),
    itemStyle: {color: style.color, borderColor: color("paper"), borderWidth: 1},
    emphasis: {disabled: true},
  };
}

// An unseen line over the whole axis: the cursor finds every x, also where all lanes have stopped.
function cursorSeries(data, panel, index) {
  const least = Math.min(...valuesOf(panel));
  return {
    type: "line",
    xAxisIndex: index,
    yAxisIndex: index,
    silent: true,
    symbol: "none",
    lineStyle: {opacity: 0},
    data: data.x.map(() => (Number.isFinite(least) ? least : "-")),
  };
}

const valuesOf = (panel) =>
    panel.series.flatMap((one) => one.values.map((value) => placed(panel, value))).filter((value) => value !== null);

function yAxis(panel, index) {
  const values = valuesOf(panel);
  const common = {
    gridIndex: index,
    name: panel.title,
    nameLocation: "end",
    nameGap: 10,
    nameTextStyle: {align: "left", fontWeight: 600, color: color("ink"), padding: [0, 0, 0, 0]},
    splitLine: gridLines,
    splitNumber: index === 0 ? 5 : 3,
    scale: true,
    axisLine: {show: false},
  };
  if (panel.scale === kPowers) {
    const low = Math.floor(Math.min(...values)), high = Math.ceil(Math.max(...values));
    return axis({
      ...common,
      type: "value",
      minInterval: 1,
      min: values.length ? low - 1 : 0,
      max: values.length ? high + 1 : 1,
      axisLabel: {formatter: (k) => `2^${k}`, showMinLabel: false, showMaxLabel: false},
    });
  }
  if (panel.scale === "logarithmic") {
    return axis({...common, type: "log", axisLabel: {formatter: (v) => short(v)}});
  }
  // About the distance of two ticks; the labels then differ.
  const step = (Math.max(...values) - Math.min(...values)) / common.splitNumber;
  return axis({...common, type: "value", axisLabel: {formatter: (v) => stepped(v, step), hideOverlap: true}});
}

function tipOf(data, shown, swatches, at) {
  const rows = [], notes = [];
  for (const panel of data.panels) {
    for (const series of panel.series) {
      if (!shown(series.name)) continue;
      const value = at < series.values.length ? valueText(panel, series.values[at]) : "stopped";
      const name = data.panels.length > 1 ? `${series.name}, ${panel.title}` : series.name;
      rows.push({swatch: swatches.get(series.name), name, value});
      const marks = series.marks.filter(([index]) => index === at);
      for (const [, step, text] of marks.slice(0, kMostMarks)) {
        notes.push(`${series.name}, ${data.xTitle} ${step}: ${text}`);
      }
      if (marks.length > kMostMarks) notes.push(`and ${marks.length - kMostMarks} more`);
    }
    for (const band of panel.bands) {
      if (!shown(band.name) || at >= band.low.length) continue;
      const range = `${valueText(panel, band.low[at])} … ${valueText(panel, band.high[at])}`;
      rows.push({swatch: swatches.get(band.name), name: band.name, value: range});
    }
  }
  return {title: `${data.xTitle} ${data.x[at]}`, rows, notes};
}

const hasValues = (panel) =>
    valuesOf(panel).length > 0 || panel.bands.some((band) => band.low.some((value) => placed(panel, value) !== null));

export function drawCurves(place, data, label) {
  if (!data.panels.some(hasValues)) {
    place.append(element("p", {class: "note"}, "No finite values."));
    return {};
  }
  const names = [...new Set(data.panels.flatMap((panel) => panel.series.map((series) => series.name)))];
  const bands = [...new Set(data.panels.flatMap((panel) => panel.bands.map((band) => band.name)))];
  const points =
      new Set(data.panels.flatMap((panel) => panel.series.filter((one) => one.isPoints).map((one) => one.name)));
  const styleOf = laneStyles(names);
  const swatches = new Map([
    ...names.map(
        (name) =>
            [name, points.has(name) ? signSwatch(kDiamond, styleOf.get(name).color) : lineSwatch(styleOf.get(name))]),
    ...bands.map((name) => [name, boxSwatch(color("band"), color("noise"))]),
  ]);
  const hidden = new Set();
  const shown = (name) => !hidden.has(name);
  const heights = data.panels.map((_, index) => (index === 0 ? kFirstHeight : kNextHeight));
  const tops = heights.map((_, index) => kTop + heights.slice(0, index).reduce((a, b) => a + b + kGap, 0));
  const last = data.panels.length - 1;

  const options = (width) => ({
    grid: tops.map((top, index) => ({top, height: heights[index], left: 52, right: isNarrow(width) ? 12 : 20})),
    xAxis: tops.map((_, index) => axis({
                      type: "category",
                      gridIndex: index,
                      data: data.x,
                      boundaryGap: data.x.length < 2,
                      name: index === last ? data.xTitle : "",
                      nameLocation: "middle",
                      nameGap: 26,
                      axisLabel: {show: index === last, formatter: (text) => ending(text, 12)},
                      axisPointer: {label: {show: false}},
                    })),
    yAxis: data.panels.map(yAxis),
    axisPointer: {link: [{xAxisIndex: "all"}], lineStyle: {color: color("accent"), width: 1, type: "solid"}},
    tooltip: tooltip({
      trigger: "axis",
      formatter: (params) => tip(tipOf(data, shown, swatches, params[0].dataIndex)),
    }),
    series: data.panels.flatMap(
        (panel, index) =>
            [...panel.bands.filter((band) => shown(band.name)).map((band) => bandSeries(panel, band, index)),
             cursorSeries(data, panel, index),
             ...panel.series.filter((one) => shown(one.name)).flatMap((one) => {
               const style = styleOf.get(one.name);
               return [lineSeries, pointSeries, markSeries].map((make) => make(panel, one, index, style));
             }),
  ]),
  });

  const toggle = (name) => (isShown) => {
    if (isShown)
      hidden.delete(name);
    else
      hidden.add(name);
    made.redraw();
  };
  const signs = data.panels.filter((panel) => panel.markName);
  place.append(legend([
    ...[...names, ...bands].map((name) => ({swatch: swatches.get(name), name, onToggle: toggle(name)})),
    ...signs.map((panel) => ({swatch: signSwatch(markShape(panel), color("soft")), name: panel.markName})),
  ]));
  const height = tops[last] + heights[last] + kBottom;
  const made =
      plot(place, {label: `${label}. Arrow keys: values of one ${data.xTitle} after the other.`, height, options});
  const spoken = element("p", {class: "spoken", "aria-live": "polite"});
  place.append(spoken);
  if (data.joined) {
    place.append(element(
        "p", {class: "note"},
        `${data.joined} steps are drawn as ${
            data.x.length} equal parts: means of curves, the last loss scale of each part, extremes of bands.`));
  }

  let at = -1;
  const show = (index) => {
    at = Math.max(0, Math.min(data.x.length - 1, index));
    const x = made.chart.convertToPixel({xAxisIndex: 0}, at);
    made.chart.dispatchAction({type: "showTip", x, y: tops[0] + kFontSize});
    spoken.textContent = sentence(tipOf(data, shown, swatches, at));
  };
  onKeys(made.box, {
    ArrowLeft: () => show(at < 0 ? data.x.length - 1 : at - 1),
    ArrowRight: () => show(at + 1),
    Home: () => show(0),
    End: () => show(data.x.length - 1),
    Escape: () => made.chart.dispatchAction({type: "hideTip"}),
  });
  return {};
}
