// A heat map: rows by columns, one view at a time, chosen by a <select> per selector. The first rows
// are shown; a scroll bar leads to the others. A cell opens its site's histogram.
import {choice, element, fill, sentence, tip} from "./dom.js";
import {heatScale} from "./heat_scale.js";
import {boxSwatch, legend} from "./legend.js";
import {canOpenHistogram, openHistogram, register, remember} from "./links.js";
import {ending} from "./numbers.js";
import {onKeys, plot, showTip, tooltip} from "./plot.js";
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
  let first = 0;  // the first row in view: only the cells of rows in view are given to ECharts
  const rows = data.rows.length;
  const shown = Math.min(rows, kMostRows);
  const keyOf = (row, column) => row * data.columns.length + column;
  // From places on the chart to rows of the data; the worst first, or as in the network.
  const orders = [data.rows.map((_, row) => row), ...(data.otherOrder.length ? [data.otherOrder] : [])];
  let order = orders[0];
  const nameAt = (place) => data.rows[order[place]];

  // What was chosen by hand: a view that lacks a role or lane does not forget it for the next.
  const wanted = [...view.choice];
  const selectors = data.selectors.map((name, i) => choice(name, [], (value) => {
                                         wanted[i] = value;
                                         show(viewFor(data.views, [...view.choice.slice(0, i), ...wanted.slice(i)], i));
                                         remember(figure);
                                       }));
  const rowOrder = choice("rows", data.orderNames.map((text, value) => ({value: `${value}`, text})), (value) => {
    order = orders[Number(value)];
    show(view);
  });
  rowOrder.field.hidden = orders.length < 2;
  const unit = element("p", {class: "unit"});
  const signs = element("div");
  place.append(element("div", {class: "fields"}, ...selectors.map(({field}) => field), rowOrder.field), unit, signs);

  function inView() {
    const list = [];
    for (let row = first; row < Math.min(rows, first + shown); row += 1) {
      for (let column = 0; column < data.columns.length; column += 1) {
        const cell = cells.get(keyOf(row, column));
        const index = cell ? scale.classOf(cell[2]) : 0;
        if (index > 0) list.push([column, row, index, cell[4]]);
      }
    }
    return list;
  }

  const leftOf = (width) =>
      Math.min(isNarrow(width) ? 110 : 240, 10 + kCharacter * Math.max(...data.rows.map((name) => name.length)));
  const options = (width) => {
    const left = leftOf(width);
    const renderItem = (params, api) => {
      const [x, y] = api.coord([api.value(0), api.value(1)]);
      const [w, h] = api.size([1, 1]);
      const isMeasured = api.value(3) === 1;
      return {
        type: "rect",
        emphasisDisabled: true,  // a cell lifted above its neighbours moves in the document, and a click on it is lost
        shape: {x: x - w / 2, y: y - h / 2, width: Math.max(1, w - (w > 6 ? 1 : 0)), height: Math.max(1, h - 1)},
        style: {
          fill: color(`heat-${api.value(2)}`),
          stroke: isMeasured ? color("ink") : "none",
          lineWidth: isMeasured ? 1.5 : 0,
        },
      };
    };
    return {
      grid: {
        left,
        right: rows > shown ? 34 : 8,
        top: kTop,
        height: shown * kRowHeight,
        show: true,
        borderWidth: 0,
        backgroundColor: color("panel")
      },
      xAxis: axis({
        type: "category",
        data: data.columns,
        name: data.xTitle,
        nameLocation: "middle",
        nameGap: 28,
      }),
      yAxis: axis({
        type: "category",
        data: order.map((row) => data.rows[row]),
        inverse: true,
        axisLine: {show: false},
        axisLabel: {interval: 0, formatter: (name) => ending(name, Math.floor((left - 10) / kCharacter))},
      }),
      dataZoom: rows > shown ? [{
        type: "slider",
        yAxisIndex: 0,
        startValue: first,
        endValue: first + shown - 1,
        zoomLock: true,
        right: 4,
        width: 14,
        filterMode: "filter",
        showDetail: false,
        showDataShadow: false,
        brushSelect: false,
        handleSize: 0,
        borderColor: color("line"),
        fillerColor: color("noise"),
        backgroundColor: color("panel"),
        moveHandleSize: 0,
      }] :
                               [],
      tooltip: tooltip({trigger: "item", formatter: ({data: cell}) => tip(tipOf(cells.get(keyOf(cell[1], cell[0]))))}),
      series: [{
        type: "custom",
        clip: true,
        encode: {x: 0, y: 1},
        data: inView(),
        renderItem,
        z: 2,
        emphasis: {disabled: true},
        progressive: 0,  // draws all cells at once, because showTip needs the cell's element
        cursor: canOpenHistogram() ? "pointer" : "default",
      }],
    };
  };
  const tipOf = (cell) => ({
    title: data.rows[cell[0]],
    rows: [{name: data.xTitle, value: data.columns[cell[1]]}, {name: view.unit, value: scale.text(cell[2])}],
    notes: cell[3] >= 0 && canOpenHistogram() ? ["Click or Enter: its histogram"] : [],
  });

  const made = plot(place, {
    label: `${label}. Arrow keys: from cell to cell. Enter: the cell's histogram.`,
    height: kTop + shown * kRowHeight + kBottom,
    options: () => ({series: []}),
  });
  const spoken = element("p", {class: "spoken", "aria-live": "polite"});
  place.append(spoken);
  if (rows > shown) {
    place.append(element("p", {class: "note"}, `${shown} of ${rows} rows are in view; the bar on the right scrolls.`));
  }

  function show(next) {
    view = next;
    scale = heatScale(data, view.unit);
    const placeOf = new Map(order.map((row, at) => [row, at]));
    cells = new Map(view.cells.map((cell) => [keyOf(placeOf.get(cell[0]), cell[1]), cell]));
    cursor = null;
    mark.hidden = true;
    first = 0;
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

  const open = (cell) => {
    if (cell && cell[3] >= 0) openHistogram(view.lane, cell[3]);
  };
  made.chart.on("click", ({data: cell}) => {
    if (Array.isArray(cell)) open(cells.get(keyOf(cell[1], cell[0])));
  });
  made.chart.on("datazoom", () => {
    first = Math.round(made.chart.getOption().dataZoom[0].startValue);
    made.chart.setOption({series: [{data: inView()}]});
    mark.hidden = true;
  });
  // Half a view at a time, so that the keyboard rarely waits.
  const scrollTo = (row) => {
    if (row >= first && row < first + shown) return;
    first = Math.max(0, Math.min(rows - shown, row - Math.floor(shown / 2)));
    made.chart.setOption({dataZoom: [{startValue: first, endValue: first + shown - 1}], series: [{data: inView()}]});
  };
  // A frame around the cell of the keyboard.
  const mark = element("div", {class: "cell", hidden: true});
  made.box.append(mark);
  made.box.addEventListener("blur", () => {
    mark.hidden = true;
  });
  const frame = ([x, y]) => {
    const width =
        Math.abs(made.chart.convertToPixel({xAxisIndex: 0}, 1) - made.chart.convertToPixel({xAxisIndex: 0}, 0)) || 20;
    Object.assign(mark.style, {
      left: `${x - width / 2}px`,
      top: `${y - kRowHeight / 2}px`,
      width: `${width}px`,
      height: `${kRowHeight}px`,
    });
    mark.hidden = false;
  };
  const go = (down, right) => {
    const from = cursor ?? {row: -Number(down > 0), column: -Number(right > 0)};
    cursor = {
      row: Math.max(0, Math.min(rows - 1, from.row + down)),
      column: Math.max(0, Math.min(data.columns.length - 1, from.column + right)),
    };
    scrollTo(cursor.row);
    const [x, y] = made.chart.convertToPixel({xAxisIndex: 0, yAxisIndex: 0}, [cursor.column, cursor.row]);
    frame([x, y]);
    const cell = cells.get(keyOf(cursor.row, cursor.column));
    const index = inView().findIndex(([column, row]) => column === cursor.column && row === cursor.row);
    if (index >= 0)
      showTip(made.chart, 0, index);
    else
      made.chart.dispatchAction({type: "hideTip"});
    spoken.textContent =
        cell ? sentence(tipOf(cell)) : `${nameAt(cursor.row)}, ${data.xTitle} ${data.columns[cursor.column]}: nothing`;
  };
  onKeys(made.box, {
    ArrowDown: () => go(1, 0),
    ArrowUp: () => go(-1, 0),
    ArrowRight: () => go(0, 1),
    ArrowLeft: () => go(0, -1),
    PageDown: () => go(shown, 0),
    PageUp: () => go(-shown, 0),
    Home: () => go(0, -data.columns.length),
    End: () => go(0, data.columns.length),
    Enter: () => cursor && open(cells.get(keyOf(cursor.row, cursor.column))),
    Escape: () => made.chart.dispatchAction({type: "hideTip"}),
  });
  register(figure, {
    get: () => view.choice,
    set: (choices) => {
      const next = data.views.find((one) => one.choice.every((chosen, i) => chosen === choices[i]));
      if (next) wanted.splice(0, wanted.length, ...choices);
      if (next) show(next);
      return Boolean(next);
    },
  });
  show(view);
}
