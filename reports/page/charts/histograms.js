// A viewer for the exponents of one site's values at a time: chosen by lane, role and layer. For a
// gradient, a slider shifts the reference's values by a loss scale; what it would lose is precomputed.
import {choice, element, field, fill, sentence, tip} from "./dom.js";
import {countAt, fateOf, heightOf, histogramOptions, kFates, rangeOf} from "./histogram_plot.js";
import {boxSwatch, legend, lineSwatch} from "./legend.js";
import {register, remember} from "./links.js";
import {grouped, percent} from "./numbers.js";
import {onKeys, plot} from "./plot.js";
import {color} from "./theme.js";

const {matcherOf} = globalThis;  // of page.js: the pattern of the page's filter
const kAllRoles = "all roles";

// The exponent of "2^16", or of the last scale of "2^14 to 2^16"; null: the values are unscaled.
function exponentOf(scale) {
  const found = /2\^(-?\d+)$/.exec(scale);
  return found ? Number(found[1]) : null;
}

export function drawHistograms(place, data, label, figure) {
  const lanes = [...new Set(data.views.map((view) => view.lane))];
  const roles = [kAllRoles, ...new Set(data.views.map((view) => view.role))];
  const viewOf = new Map(data.views.map((view) => [`${view.lane}/${view.site}`, view]));
  // Where a finding began; else a gradient of a lane with a loss scale has most to show.
  const gradients = new Set(data.gradients.map((one) => `${one.site} ${one.format}`));
  const first = data.findingLeads ?
      data.views[0] :
      data.views.find((view) => view.scale !== "" && gradients.has(`${view.site} ${view.format}`)) ?? data.views[0];
  const state = {view: first, gradient: null, shift: 0, isLogarithmic: true};

  const chosen = () => {
    show(viewOf.get(`${lane.select.value}/${site.select.value}`));
    remember(figure);
  };
  const lane = choice("lane", lanes.map((name) => ({value: name, text: name})), () => {
    list();
    chosen();
  });
  const role = choice("role", roles.map((name) => ({value: name, text: name})), () => {
    list();
    chosen();
  });
  const site = choice("site", [], chosen);
  const pattern = element("input", {type: "search", placeholder: "conv*", spellcheck: "false"});
  const log = element("input", {type: "checkbox", checked: true});
  pattern.addEventListener("input", () => {
    list();
    if (site.select.value !== "") chosen();
  });
  log.addEventListener("change", () => {
    state.isLogarithmic = log.checked;
    made.redraw();
  });
  site.field.classList.add("wide");
  const facts = element("p", {class: "facts"});
  const slider = element("input", {type: "range", step: "1", min: `${data.firstScale}`});
  const loss = element("output", {class: "loss"});
  const scaling = element("div", {class: "scaling", hidden: true}, field("loss scale", slider), loss);
  place.append(
      element("div", {class: "fields"}, lane.field, role.field, field("layer", pattern), site.field), facts, scaling,
      legend([
        ...Object.entries(kFates).map(([fate, name]) => ({swatch: boxSwatch(color(`fate-${fate}`)), name})),
        {swatch: lineSwatch({color: color("accent"), dash: []}), name: `${data.reference} at the slider's loss scale`},
      ]),
      element("label", {class: "check"}, log, "logarithmic counts"));

  // The sites of the lane that have the role and match the pattern; keeps the chosen one if it is among them.
  function list() {
    const matches = matcherOf(pattern.value.trim() || "*");
    const sites = data.views.filter(
        (view) => view.lane === lane.select.value &&
            (role.select.value === kAllRoles || view.role === role.select.value) && matches.test(view.layer));
    fill(site.select, sites.map((view) => ({value: `${view.site}`, text: view.label})));
    if (sites.some((view) => view.site === state.view.site)) site.select.value = `${state.view.site}`;
  }

  function tipAt(exponent) {
    const {view, gradient, shift} = state;
    const window = data.windows.find((one) => one.name === view.format);
    const rows = [{name: view.lane, value: grouped(countAt(view.seen, exponent))}];
    if (gradient)
      rows.push(
          {name: `${data.reference} at 2^${shift}`, value: grouped(countAt(gradient.reference, exponent - shift))});
    const notes = window ? [`${kFates[fateOf(window, exponent)]} in ${view.format}`] : [];
    return {title: `2^${exponent} to 2^${exponent + 1}`, rows, notes};
  }

  const made = plot(place, {
    label: `${label}. Arrow keys: counts of one power of two after the other.`,
    height: heightOf(data.windows),
    options: (width) => histogramOptions(width, data.windows, state, (exponent) => tip(tipAt(exponent))),
  });
  const spoken = element("p", {class: "spoken", "aria-live": "polite"});
  place.append(spoken);

  function shiftTo(shift) {
    const i = shift - data.firstScale, {gradient} = state;
    state.shift = shift;
    slider.value = `${shift}`;
    slider.setAttribute("aria-valuetext", `2^${shift}`);
    loss.textContent = `at 2^${shift}: ${percent(gradient.toZero[i])} of the values become zero, ` +
        `${percent(gradient.overflow[i])} exceed ${gradient.format}'s largest number`;
  }
  slider.addEventListener("input", () => {
    shiftTo(Number(slider.value));
    made.redraw();
  });

  function show(view) {
    state.view = view;
    const here = data.gradients.filter((one) => one.site === view.site);
    state.gradient = here.find((one) => one.format === view.format) ?? here[0] ?? null;
    scaling.hidden = state.gradient === null;
    if (state.gradient) {
      const last = data.firstScale + state.gradient.toZero.length - 1;
      slider.max = `${last}`;
      shiftTo(Math.max(data.firstScale, Math.min(last, exponentOf(view.scale) ?? 0)));
    }
    facts.replaceChildren(
        element("b", {}, view.label),
        ...[view.source,
            view.format && `rounded to ${view.format}`,
            view.scale && `scaled by ${view.scale}`,
            `zeros: ${grouped(view.zeros)}`,
            `not finite: ${grouped(view.nonfinite)}`,
    ].filter(Boolean)
            .map((text) => element("span", {}, text)));
    made.redraw();
  }

  let at = null;
  const go = (step) => {
    const {first, last} = rangeOf(state.view, state.gradient, data.windows);
    at = Math.max(first, Math.min(last, at === null ? (step > 0 ? first : last) : at + step));
    const [x, y] = made.chart.convertToPixel({xAxisIndex: 1, yAxisIndex: 1}, [at + 0.5, 0]);
    made.chart.dispatchAction({type: "showTip", x, y: y - 20});
    spoken.textContent = sentence(tipAt(at));
  };
  onKeys(made.box, {
    ArrowLeft: () => go(-1),
    ArrowRight: () => go(1),
    Escape: () => made.chart.dispatchAction({type: "hideTip"}),
  });

  register(figure, {
    get: () => [state.view.lane, `${state.view.site}`],
    set: ([name, id]) => {
      const view = viewOf.get(`${name}/${id}`);
      if (!view) return false;
      lane.select.value = view.lane;
      role.select.value = kAllRoles;
      pattern.value = "";
      state.view = view;
      list();
      show(view);
      return true;
    },
  });
  lane.select.value = first.lane;
  list();
  show(first);
}
