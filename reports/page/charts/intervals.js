// Intervals of exponents, one bar a row; what is common to all; marks as vertical lines with names.
// A row whose low end is above its high end holds nothing: both ends are drawn as a conflict.
import {element, sentence, tip} from "./dom.js";
import {boxSwatch, legend, lineSwatch} from "./legend.js";
import {ending, short} from "./numbers.js";
import {onKeys, plot, showTip, tooltip} from "./plot.js";
import {axis, color, gridLines, isNarrow, kFont, kFontSize} from "./theme.js";

const kRowHeight = 22, kMostRows = 30, kMarkRoom = 20, kBottom = 46, kCharacter = 7;

const power = (k) => `2^${short(k)}`;

// By value; those of one value share a line.
function marksOf(data) {
  const byValue = new Map();
  for (const {name, value} of data.marks) byValue.set(value, [...(byValue.get(value) ?? []), name]);
  return [...byValue].map(([value, names]) => ({value, name: names.join("; ")})).sort((a, b) => a.value - b.value);
}

export function drawIntervals(place, data, label) {
  const rows = data.rows.length, shown = Math.min(rows, kMostRows);
  const isCommon = data.low !== null && data.high !== null && data.low <= data.high;
  const commonName = data.commonName || "common to all";
  const ends = [...data.rows.flatMap((row) => [row.low, row.high]), ...data.marks.map((mark) => mark.value)].filter(
      (v) => v !== null);
  const first = Math.floor(Math.min(...ends)) - 1, last = Math.ceil(Math.max(...ends)) + 1;
  const marks = marksOf(data);
  const top = 8 + kMarkRoom * marks.length;

  const tipOf = (row) => ({
    title: row.name,
    rows: [{name: `from ${power(row.low)}`, value: row.lowText}, {name: `to ${power(row.high)}`, value: row.highText}],
    notes: row.low > row.high ? ["No value satisfies both ends."] : [],
  });

  const bar = (params, api) => {
    const row = data.rows[api.value(1)];
    const [a, y] = api.coord([row.low, api.value(1)]), b = api.coord([row.high, api.value(1)])[0];
    const isEmpty = row.low > row.high;
    const shape = {x: Math.min(a, b), y: y - 6, width: Math.max(2, Math.abs(b - a)), height: 12};
    const style =
        isEmpty ? {fill: "none", stroke: color("bad"), lineWidth: 1.5, lineDash: [4, 3]} : {fill: color("interval")};
    const hit = {
      type: "rect",
      shape: {...shape, y: y - kRowHeight / 2, height: kRowHeight},
      style: {fill: "transparent"}
    };
    return {type: "group", children: [hit, {type: "rect", shape, style}]};
  };
  const common = (params, api) => {
    const a = api.coord([data.low, 0])[0], b = api.coord([data.high, 0])[0];
    const {y, height} = params.coordSys;
    const shape = {x: a, y, width: Math.max(2, b - a), height};
    return {
      type: "rect",
      shape,
      style: {fill: color("shade"), stroke: color("accent"), lineWidth: 1, lineDash: [3, 3]}
    };
  };
  const mark = (params, api) => {
    const {name, value} = marks[params.dataIndex];
    const x = api.coord([value, 0])[0], {y, height, width, x: left} = params.coordSys;
    const lineTop = y - kMarkRoom * (params.dataIndex + 1) + 6;
    const isRight = x > left + width / 2;
    const room = (isRight ? x : left + width - x + 16) - 10;
    return {
      type: "group",
      children: [
        {
          type: "line",
          shape: {x1: x, x2: x, y1: lineTop, y2: y + height},
          style: {stroke: color("accent"), lineWidth: 1.5}
        },
        {
          type: "text",
          x: x + (isRight ? -5 : 5),
          y: lineTop,
          style: {
            text: `${power(value)} ${name}`,
            fill: color("ink"),
            font: `${kFontSize}px ${kFont}`,
            align: isRight ? "right" : "left",
            verticalAlign: "top",
            width: room,
            overflow: "truncate",
          },
        },
      ],
    };
  };

  const options = (width) => {
    const left = Math.min(
        isNarrow(width) ? 110 : 260, 12 + kCharacter * Math.max(1, ...data.rows.map((row) => row.name.length)));
    const custom = (list, renderItem, more) =>
        ({type: "custom", data: list, renderItem, emphasis: {disabled: true}, ...more});
    return {
      grid: {left, right: rows > shown ? 34 : 16, top, height: shown * kRowHeight},
      xAxis: axis({
        type: "value",
        min: first,
        max: last,
        minInterval: 1,
        splitNumber: isNarrow(width) ? 4 : 10,
        name: data.xTitle,
        nameLocation: "middle",
        nameGap: 28,
        splitLine: gridLines,
        axisLabel: {formatter: (k) => `2^${k}`, hideOverlap: true, showMinLabel: false, showMaxLabel: false},
      }),
      yAxis: axis({
        type: "category",
        inverse: true,
        data: data.rows.map((row) => row.name),
        axisLine: {show: false},
        axisLabel: {interval: 0, formatter: (name) => ending(name, Math.floor((left - 12) / kCharacter))},
      }),
      dataZoom: rows > shown ? [{
        type: "slider",
        yAxisIndex: 0,
        startValue: 0,
        endValue: shown - 1,
        zoomLock: true,
        right: 4,
        width: 14,
        filterMode: "filter",
        showDetail: false,
        showDataShadow: false,
        brushSelect: false,
        handleSize: 0,
        moveHandleSize: 0,
        borderColor: color("line"),
        fillerColor: color("noise"),
        backgroundColor: color("panel"),
      }] :
                               [],
      tooltip: tooltip({trigger: "item", formatter: ({data: [, row]}) => tip(tipOf(data.rows[row]))}),
      series: [
        custom(isCommon ? [[data.low, 0]] : [], common, {z: 1, silent: true, tooltip: {show: false}}),
        custom(data.rows.map((row, i) => [row.low, i, row.high]), bar, {z: 2, encode: {x: [0, 2], y: 1}}),
        custom(
            marks.map((one) => [one.value, 0]), mark,
            {z: 3, silent: true, clip: false, encode: {x: 0}, tooltip: {show: false}}),
      ],
    };
  };
  const hasConflict = data.rows.some((row) => row.low > row.high);
  place.append(legend([
    {swatch: boxSwatch(color("interval")), name: "fits"},
    ...(isCommon ? [{
      swatch: boxSwatch(color("shade"), color("accent")),
      name: `${commonName}: ${power(data.low)} to ${power(data.high)}`
    }] :
                   []),
    ...(hasConflict ? [{swatch: boxSwatch("none", color("bad")), name: "nothing fits: the ends exclude each other"}] :
                      []),
    ...(marks.length ? [{swatch: lineSwatch({color: color("accent"), dash: []}), name: "marked values"}] : []),
  ]));
  if (!isCommon) place.append(element("p", {class: "note"}, "No value is common to all rows."));
  const made = plot(
      place, {label: `${label}. Arrow keys: from row to row.`, height: top + shown * kRowHeight + kBottom, options});
  const spoken = element("p", {class: "spoken", "aria-live": "polite"});
  place.append(spoken);
  let at = -1;
  const go = (step) => {
    at = Math.max(0, Math.min(rows - 1, at + step));
    if (rows > shown) {
      const start = Math.max(0, Math.min(rows - shown, at - Math.floor(shown / 2)));
      made.chart.dispatchAction({type: "dataZoom", startValue: start, endValue: start + shown - 1}, {flush: true});
    }
    const row = data.rows[at];
    showTip(made.chart, 1, at);
    spoken.textContent = sentence(tipOf(row));
  };
  onKeys(
      made.box,
      {ArrowDown: () => go(1), ArrowUp: () => go(-1), Escape: () => made.chart.dispatchAction({type: "hideTip"})});
}
