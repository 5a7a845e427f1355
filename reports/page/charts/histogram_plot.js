// One site's exponent histogram under the windows of the formats, as ECharts' options.
import {grouped} from "./numbers.js";
import {tooltip} from "./plot.js";
import {axis, color, gridLines, isNarrow} from "./theme.js";

const kStripRow = 18, kHeight = 240, kTop = 6, kGap = 14, kBottom = 44;
const kNarrowWindow = 48;  // exponents: windows up to here are shown as a whole
const kMargin = 2, kRoomAbove = 6;
const kLogFloor = -0.3;  // of log10(count), so that a single value can be seen

export const heightOf = (windows) => kTop + windows.length * kStripRow + kGap + kHeight + kBottom;

const lastOf = (counts) => counts.first + counts.counts.length - 1;

// The exponents to show: of the values, of the unscaled reference, of the narrow formats.
export function rangeOf(view, gradient, windows) {
  const ends = windows.filter((one) => one.max - one.minSubnormal <= kNarrowWindow)
                   .flatMap((one) => [one.minSubnormal, one.max]);
  for (const counts of [view.seen, gradient?.reference]) {
    if (counts?.counts.length) ends.push(counts.first, lastOf(counts));
  }
  if (!ends.length) return {first: -10, last: 10};
  return {first: Math.min(...ends) - kMargin, last: Math.max(...ends) + (gradient ? kRoomAbove : kMargin)};
}

const countAt = (counts, exponent) => counts.counts[exponent - counts.first] ?? 0;

// What the format does with values of this exponent. Those just below the smallest number round up to it.
export function fateOf(window, exponent) {
  if (!window) return "kept";
  if (exponent < window.minSubnormal - 1) return "zero";
  if (exponent > window.max) return "overflow";
  return exponent < window.minNormal ? "subnormal" : "kept";
}

export const kFates = {
  kept: "kept",
  subnormal: "subnormal: fewer bits",
  zero: "becomes zero",
  overflow: "exceeds the largest number",
};

// Both parts of a format's window, cut off at the ends of the chart.
function windowParts({first, last}, window) {
  const cut = (exponent) => Math.max(first, Math.min(last + 1, exponent));
  return {
    start: cut(window.minSubnormal),
    normal: cut(window.minNormal),
    end: cut(window.max + 1),
  };
}

function stripSeries(range, windows, own) {
  return {
    type: "custom",
    xAxisIndex: 0,
    yAxisIndex: 0,
    silent: true,
    clip: true,
    tooltip: {show: false},
    data: windows.map((_, i) => [range.first, i]),
    renderItem: (params, api) => {
      const window = windows[params.dataIndex];
      const {start, normal, end} = windowParts(range, window);
      const name = window.name === own ? "own" : "other";
      const bar = (from, to, fill) => {
        const [x, y] = api.coord([from, params.dataIndex]);
        return {
          type: "rect",
          style: {fill: color(fill)},
          shape: {x, y: y - 5, width: Math.max(0, api.coord([to, 0])[0] - x), height: 10},
        };
      };
      return {type: "group", children: [bar(start, normal, `${name}-subnormal`), bar(normal, end, `${name}-window`)]};
    },
  };
}

// The lane's own format behind the bars.
function shadeSeries(range, window) {
  return {
    type: "custom",
    xAxisIndex: 1,
    yAxisIndex: 1,
    silent: true,
    clip: true,
    z: 1,
    tooltip: {show: false},
    data: window ? [[range.first, 0]] : [],
    renderItem: (params, api) => {
      const {start, normal, end} = windowParts(range, window);
      const {y, height} = params.coordSys;
      const box = (from, to, fill) => {
        const x = api.coord([from, 0])[0];
        return {type: "rect", shape: {x, y, width: api.coord([to, 0])[0] - x, height}, style: {fill: color(fill)}};
      };
      return {type: "group", children: [box(start, normal, "shade-subnormal"), box(normal, end, "shade")]};
    },
  };
}

function barSeries(points, window) {
  return {
    type: "custom",
    xAxisIndex: 1,
    yAxisIndex: 1,
    clip: true,
    z: 2,
    data: points,
    emphasis: {disabled: true},
    renderItem: (params, api) => {
      const exponent = Math.floor(api.value(0));
      const [x, top] = api.coord([exponent, api.value(1)]);
      const width = api.size([1, 0])[0];
      const bottom = params.coordSys.y + params.coordSys.height;
      const fate = fateOf(window, exponent);
      return {
        type: "rect",
        style: {fill: color(`fate-${fate}`)},
        shape: {x: x + 0.5, y: top, width: Math.max(1, width - 1), height: Math.max(0, bottom - top)},
      };
    },
  };
}

// The reference's values at a loss scale, as an outline.
function outlineSeries(range, reference, shift, measure) {
  return {
    type: "custom",
    xAxisIndex: 1,
    yAxisIndex: 1,
    silent: true,
    clip: true,
    z: 3,
    tooltip: {show: false},
    data: reference ? [[range.first, 0]] : [],
    renderItem: (params, api) => {
      const points = [];
      for (let exponent = range.first; exponent <= range.last; exponent += 1) {
        const y = api.coord([0, measure(countAt(reference, exponent - shift))])[1];
        points.push([api.coord([exponent, 0])[0], y], [api.coord([exponent + 1, 0])[0], y]);
      }
      return {type: "polyline", shape: {points}, style: {fill: "none", stroke: color("accent"), lineWidth: 2}};
    },
  };
}

// To 1, 2 or 5 times a power of ten.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= value);
}

// state: {view, gradient, shift, isLogarithmic}; tipAt(exponent) gives the tooltip's element.
export function histogramOptions(width, windows, state, tipAt) {
  const {view, gradient, shift, isLogarithmic} = state;
  const range = rangeOf(view, gradient, windows);
  const own = windows.find((one) => one.name === view.format);
  const measure = (count) => (isLogarithmic ? (count > 0 ? Math.log10(count) : kLogFloor) : count);
  const points = [];
  for (let exponent = range.first; exponent <= range.last; exponent += 1) {
    points.push([exponent + 0.5, measure(countAt(view.seen, exponent))]);
  }
  const left = 84, right = isNarrow(width) ? 8 : 16;
  const strip = windows.length * kStripRow;
  const exponents =
      {type: "value", min: range.first, max: range.last + 1, minInterval: 1, splitNumber: isNarrow(width) ? 4 : 10};
  const most =
      Math.max(1, ...points.map((point) => point[1]), ...(gradient ? gradient.reference.counts.map(measure) : []));
  const decades = Array.from({length: 1 + Math.max(1, Math.ceil(most))}, (_, k) => k);
  const counts = isLogarithmic ? {
    min: kLogFloor,
    max: Math.max(1, Math.ceil(most)),
    axisTick: {show: false, customValues: decades},
    axisLabel: {customValues: decades, formatter: (k) => grouped(10 ** k)},
  } :
                                 {min: 0, max: roundUp(most), minInterval: 1, axisLabel: {formatter: grouped}};
  return {
    grid: [
      {left, right, top: kTop, height: strip},
      {left, right, top: kTop + strip + kGap, height: kHeight},
    ],
    xAxis: [
      axis({...exponents, gridIndex: 0, show: false}),
      axis({
        ...exponents,
        gridIndex: 1,
        axisLine: {onZero: false, lineStyle: {color: color("soft")}},
        name: "magnitude",
        nameLocation: "middle",
        nameGap: 26,
        axisLabel: {formatter: (k) => `2^${k}`, hideOverlap: true, showMinLabel: false, showMaxLabel: false},
        axisPointer: {label: {show: false}, lineStyle: {color: color("accent"), type: "solid"}},
      }),
    ],
    yAxis: [
      axis({
        type: "category",
        gridIndex: 0,
        inverse: true,
        data: windows.map((one) => one.name),
        axisLine: {show: false},
        axisLabel: {
          interval: 0,
          formatter: (name) => (name === view.format ? `{own|${name}}` : name),
          rich: {own: {color: color("accent"), fontWeight: 700}},
        },
      }),
      axis({type: "value", gridIndex: 1, splitLine: gridLines, axisLine: {show: false}, splitNumber: 4, ...counts}),
    ],
    tooltip: tooltip({trigger: "axis", formatter: (params) => tipAt(range.first + params[0].dataIndex)}),
    series: [
      stripSeries(range, windows, view.format),
      shadeSeries(range, own),
      barSeries(points, own),
      outlineSeries(range, gradient?.reference, shift, measure),
    ],
  };
}

export {countAt};
