// A heat map: rows by columns, one view at a time, chosen by a <select> per selector. The first rows
// are shown; a scroll bar leads to the others. A cell opens its site's histogram.
import {choice, element, fill, tip} from "./dom.js";
import {heatScale} from "./heat_scale.js";
import {boxSwatch, legend} from "./legend.js";
import {canOpenHistogram, openHistogram, register, remember} from "./links.js";
import {ending} from "./numbers.js";
import {onKeys, plot, tooltip} from "./plot.js";
import {axis, color, isNarrow} from "./theme.js";

const kMostRows = 40;  // at once
const kRowHeight = 16, kTop = 10, kBottom = 48, kCharacter = 7;

// Which views there are: of selector i, what goes with the choices before it.
function optionsAt(views, choices, i) {
  const fits = (view) => choices.slice(0, i).every((chosen, j) => view.choice[j] === chosen);
  return [...new Set(views.filter(fits).map((view) => view.choice[i]))];
}

// The view with these choices up to selector i and, where there is one, those after it.
function viewFor(views, choices, i) {
  const common = (view) => {
    let n = 0;
    while (n < choices.length && view.choice[n] === choices[n]) n += 1;
    return n;
  };
  const after = (view) => view.choice.filter((chosen, j) => j > i && chosen === choices[j]).length;
  return views.filter((view) => common(view) > i).sort((a, b) => after(b) - after(a))[0];
}

export function drawHeatMap(place, data, label, figure) {
  let view = data.views[0], scale = null, cells = new Map(), cursor = null;
  const rows = data.rows.length;
  const shown = Math.min(rows, kMostRows);
  const keyOf = (row, column) => row * data.columns.length + column;

  const selectors = data.selectors.map((name, i) => choice(name, [], (value) => {
    const choices = [...view.choice];
    choices[i] = value;
    show(viewFor(data.views, choices, i));
    remember(figure);
  }));
  const unit = element("p", {class: "unit"});
  const signs = element("div");
  place.append(element("div", {class: "fields"}, ...selectors.map(({field}) => field)), unit, signs);

  const leftOf = (width) => Math.min(isNarrow(width) ? 110 : 240,
    10 + kCharacter * Math.max(...data.rows.map((name) => name.length)));
  const options = (width) => {
    const left = leftOf(width);
    const series = (list, more) => ({
      type: "custom", clip: true, encode: {x: 0, y: 1}, data: list, renderItem: (params, api) => {
        const [x, y] = api.coord([api.value(0), api.value(1)]);
        const [w, h] = api.size([1, 1]);
        const gap = w > 6 ? 1 : 0;
        const shape = {x: x - w / 2, y: y - h / 2, width: Math.max(1, w - gap), height: Math.max(1, h - 1)};
        return {type: "rect", shape, style: more.style(api)};
      },
      ...more.series,
    });
    const style = (api) => ({
      fill: color(`heat-${api.value(2)}`),
      stroke: api.value(3) ? color("ink") : "none", lineWidth: api.value(3) ? 1.5 : 0,
    });
    const list = [...cells.values()].map((cell) => [cell[1], cell[0], scale.classOf(cell[2]), cell[4]]).filter((cell) => cell[2] > 0);
    return {
      grid: {left, right: rows > shown ? 34 : 8, top: kTop, height: shown * kRowHeight, show: true, borderWidth: 0, backgroundColor: color("panel")},
      xAxis: axis({
        type: "category", data: data.columns, name: data.xTitle, nameLocation: "middle", nameGap: 28,
        axisLabel: {hideOverlap: true},
      }),
      yAxis: axis({
        type: "category", data: data.rows, inverse: true, axisLine: {show: false},
        axisLabel: {interval: 0, formatter: (name) => ending(name, Math.floor((left - 10) / kCharacter))},
      }),
      dataZoom: rows > shown ? [{
        type: "slider", yAxisIndex: 0, startValue: 0, endValue: shown - 1, zoomLock: true, right: 4, width: 14,
        filterMode: "filter", showDetail: false, showDataShadow: false, brushSelect: false, handleSize: 0,
        borderColor: color("line"), fillerColor: color("noise"), backgroundColor: color("panel"), moveHandleSize: 0,
      }] : [],
      tooltip: tooltip({trigger: "item", formatter: ({data: cell}) => tipOf(cells.get(keyOf(cell[1], cell[0])))}),
      series: [
        series(list, {style, series: {z: 2, cursor: canOpenHistogram() ? "pointer" : "default"}}),
        series(cursor ? [[cursor.column, cursor.row]] : [], {
          style: () => ({fill: "none", stroke: color("accent"), lineWidth: 2.5}), series: {z: 4, silent: true, clip: false},
        }),
      ],
    };
  };
  const tipOf = (cell) => tip(`${data.rows[cell[0]]}`, [
    {name: data.xTitle, value: data.columns[cell[1]]}, {name: view.unit, value: scale.text(cell[2])},
  ], cell[3] >= 0 && canOpenHistogram() ? ["Click or Enter: its histogram"] : []);

  const made = plot(place, {
    label: `${label}. Arrow keys: from cell to cell. Enter: the cell's histogram.`,
    height: kTop + shown * kRowHeight + kBottom, options: () => ({series: []}),
  });
  const spoken = element("p", {class: "spoken", "aria-live": "polite"});
  place.append(spoken);
  if (rows > shown) {
    place.append(element("p", {class: "note"}, `${shown} of ${rows} rows are in view, the worst first; the bar on the right scrolls.`));
  }

  function show(next) {
    view = next;
    scale = heatScale(data, view.unit);
    cells = new Map(view.cells.map((cell) => [keyOf(cell[0], cell[1]), cell]));
    cursor = null;
    selectors.forEach(({select}, i) => {
      fill(select, optionsAt(data.views, view.choice, i).map((value) => ({value, text: value})));
      select.value = view.choice[i];
    });
    unit.textContent = `Colour: ${view.unit}`;
    signs.replaceChildren(legend([
      ...scale.classes.map(({index, text}) => ({swatch: boxSwatch(color(`heat-${index}`)), name: text})),
      ...(view.cells.some((cell) => cell[4]) ? [{swatch: boxSwatch("none", color("ink")), name: "measured"}] : []),
    ]));
    made.options = options;
    made.redraw();
  }

  const open = (cell) => { if (cell && cell[3] >= 0) openHistogram(view.lane, cell[3]); };
  made.chart.on("click", ({data: cell}) => { if (Array.isArray(cell)) open(cells.get(keyOf(cell[1], cell[0]))); });
  const scrollTo = (row) => {
    if (rows <= shown) return;
    const {startValue} = made.chart.getOption().dataZoom[0];
    const first = Math.max(0, Math.min(row, Math.max(startValue, row - shown + 1)));
    if (first !== startValue) made.chart.dispatchAction({type: "dataZoom", startValue: first, endValue: first + shown - 1});
  };
  const go = (down, right) => {
    const from = cursor ?? {row: -Number(down > 0), column: -Number(right > 0)};
    cursor = {
      row: Math.max(0, Math.min(rows - 1, from.row + down)),
      column: Math.max(0, Math.min(data.columns.length - 1, from.column + right)),
    };
    made.chart.setOption({series: [{}, {data: [[cursor.column, cursor.row]]}]});
    scrollTo(cursor.row);
    const cell = cells.get(keyOf(cursor.row, cursor.column));
    const [x, y] = made.chart.convertToPixel({xAxisIndex: 0, yAxisIndex: 0}, [cursor.column, cursor.row]);
    made.chart.dispatchAction(cell ? {type: "showTip", x, y} : {type: "hideTip"});
    const value = cell ? `${view.unit}: ${scale.text(cell[2])}` : "nothing";
    spoken.textContent = `${data.rows[cursor.row]}, ${data.xTitle} ${data.columns[cursor.column]}: ${value}`;
  };
  onKeys(made.box, {
    ArrowDown: () => go(1, 0), ArrowUp: () => go(-1, 0), ArrowRight: () => go(0, 1), ArrowLeft: () => go(0, -1),
    PageDown: () => go(shown, 0), PageUp: () => go(-shown, 0),
    Home: () => go(0, -data.columns.length), End: () => go(0, data.columns.length),
    Enter: () => cursor && open(cells.get(keyOf(cursor.row, cursor.column))),
    Escape: () => made.chart.dispatchAction({type: "hideTip"}),
  });
  register(figure, {
    get: () => view.choice,
    set: (choices) => {
      const next = data.views.find((one) => one.choice.every((chosen, i) => chosen === choices[i]));
      if (next) show(next);
      return Boolean(next);
    },
  });
  show(view);
}
