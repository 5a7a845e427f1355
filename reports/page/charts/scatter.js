// Points in groups, with error bars upwards; the chosen one stands out.
import {element, sentence, tip} from "./dom.js";
import {legend, signSwatch} from "./legend.js";
import {short} from "./numbers.js";
import {onKeys, plot, showTip, tooltip} from "./plot.js";
import {axis, color, gridLines, isNarrow, kFont, kFontSize, lineStyle} from "./theme.js";

const kHeight = 320, kBottom = 48;
// A shape per group, so that colours are not needed: ECharts' name, and the legend's path.
const kShapes = [
  ["circle", "M7 1A5 5 0 1 1 6.9 1Z"],
  ["rect", "M2 1H12V11H2Z"],
  ["triangle", "M7 1L13 11H1Z"],
  ["diamond", "M7 0L13 6L7 12L1 6Z"],
];

export function drawScatter(place, data, label) {
  const groups = [...new Set(data.points.map((point) => point.group))];
  // The first colour is the ink: for the chosen point's name and ring.
  const lookOf = (group) => {
    const i = groups.indexOf(group);
    return {fill: lineStyle(1 + (i % 5)).color, shape: kShapes[i % kShapes.length]};
  };
  const hidden = new Set();
  const tipOf = (point) => ({
    title: point.name,
    rows: [
      {name: data.xTitle, value: short(point.x)},
      {
        name: data.yTitle,
        value: point.yHigh === undefined ? short(point.y) : `${short(point.y)}, up to ${short(point.yHigh)}`
      },
    ],
    notes: [point.group, point.chosen ? "the chosen one" : ""].filter(Boolean),
  });
  const drawable = (value, isLogarithmic) => value !== null && (!isLogarithmic || value > 0);
  const seen = () => data.points.filter(
      (point) =>
          !hidden.has(point.group) && drawable(point.x, data.xLogarithmic) && drawable(point.y, data.yLogarithmic));

  const errorBar = (params, api) => {
    const [x, low] = api.coord([api.value(0), api.value(1)]), high = api.coord([api.value(0), api.value(2)])[1];
    const style = {stroke: color("soft"), lineWidth: 1.25};
    const line = (x1, y1, x2, y2) => ({type: "line", shape: {x1, y1, x2, y2}, style});
    return {type: "group", children: [line(x, low, x, high), line(x - 4, high, x + 4, high)]};
  };
  const options = (width) => {
    const points = seen();
    const xs = points.map((point) => point.x), middle = (Math.min(...xs) + Math.max(...xs)) / 2;
    const scale = (isLogarithmic) => ({
      type: isLogarithmic ? "log" : "value",
      scale: true,
      splitLine: gridLines,
      axisLine: {show: false},
      axisLabel: {formatter: (v) => short(v), hideOverlap: true},
    });
    return {
      grid: {left: 62, right: isNarrow(width) ? 14 : 24, top: 28, height: kHeight},
      xAxis: axis({...scale(data.xLogarithmic), name: data.xTitle, nameLocation: "middle", nameGap: 28}),
      yAxis: axis({
        ...scale(data.yLogarithmic),
        name: data.yTitle,
        nameLocation: "end",
        nameGap: 10,
        nameTextStyle: {align: "left", padding: [0, 0, 0, -54]},
      }),
      tooltip: tooltip({trigger: "item", formatter: ({data: one}) => tip(tipOf(one.point))}),
      series: [
        {
          type: "custom",
          z: 1,
          silent: true,
          tooltip: {show: false},
          renderItem: errorBar,
          encode: {x: 0, y: [1, 2]},
          data: points.filter((p) => p.yHigh !== undefined && p.yHigh !== null).map((p) => [p.x, p.y, p.yHigh]),
        },
        {
          type: "scatter",
          z: 2,
          emphasis: {disabled: true},
          data: points.map((point) => {
            const {fill, shape} = lookOf(point.group);
            return {
              point,
              value: [point.x, point.y],
              symbol: shape[0],
              symbolSize: point.chosen ? 16 : 10,
              itemStyle:
                  {color: fill, borderColor: color(point.chosen ? "ink" : "paper"), borderWidth: point.chosen ? 2 : 1},
              label: {
                show: point.chosen,
                formatter: () => point.name,
                position: "top",
                align: points.length > 1 && point.x > middle ? "right" : "left",
                color: color("ink"),
                fontFamily: kFont,
                fontSize: kFontSize,
                fontWeight: 600,
              },
            };
          }),
        },
      ],
    };
  };
  const toggle = (group) => (isShown) => {
    if (isShown)
      hidden.delete(group);
    else
      hidden.add(group);
    made.redraw();
  };
  place.append(legend(groups.filter(Boolean).map((group) => {
    const {fill, shape} = lookOf(group);
    return {swatch: signSwatch(shape[1], fill), name: group, onToggle: toggle(group)};
  })));
  if (data.barHelp) place.append(element("p", {class: "note"}, data.barHelp));
  const made =
      plot(place, {label: `${label}. Arrow keys: from point to point.`, height: 28 + kHeight + kBottom, options});
  const spoken = element("p", {class: "spoken", "aria-live": "polite"});
  place.append(spoken);
  let at = -1;
  const go = (step) => {
    const drawn = seen(), points = [...drawn].sort((a, b) => a.x - b.x);
    if (!points.length) return;
    at = Math.max(0, Math.min(points.length - 1, at + step));
    showTip(made.chart, 1, drawn.indexOf(points[at]));
    spoken.textContent = sentence(tipOf(points[at]));
  };
  onKeys(
      made.box,
      {ArrowRight: () => go(1), ArrowLeft: () => go(-1), Escape: () => made.chart.dispatchAction({type: "hideTip"})});
}
