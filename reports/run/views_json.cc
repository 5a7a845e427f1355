// See views_json.h.
#include "reports/run/views_json.h"

#include "reports/run/finding_json.h"
#include "reports/run/range_json.h"
#include "reports/words/range_text.h"

namespace lockstep {
namespace {

struct ViewCell {
  const StepMap& map;
  const StepCell& cell;
};
struct Grid {
  const StepMap& map;
  const StepGrid& grid;
};
struct Link {
  const Report& report;
  const FaultLink& link;
};
struct Chain {
  const Report& report;
  const FaultChain& chain;
};
struct ExponentsAt {
  const Report& report;
  const SiteExponents& exponents;
};
struct CostOf {
  const Report& report;
  const LaneCost& cost;
};

const JsonObject<ViewCell>& json_object(const ViewCell*) {
  static const JsonObject<ViewCell> keys(
      "",
      {
          {"layer", [](auto& c) { return c.map.layers[c.cell.layer]; }},
          {"first_step", [](auto& c) { return c.map.columns[c.cell.column].first; }},
          {"last_step", [](auto& c) { return c.map.columns[c.cell.column].second; }},
          {"share", [](auto& c) { return c.cell.share; }, "0..1, of what the measure names"},
          {"site_id", [](auto& c) { return c.cell.site; }, "index into the run file's site table"},
      });
  return keys;
}

const JsonObject<Grid>& json_object(const Grid*) {
  static const JsonObject<Grid> keys(
      "",
      {
          {"measure", [](auto& g) { return step_measures()[g.grid.measure].name; },
           "from the table in [report.md](report.md#measures-of-the-heat-map)"},
          {"role", [](auto& g) { return to_string(g.grid.role); }},
          {"cells", [](auto& g) { return each<ViewCell>(g.map, g.grid.cells); },
           "the worst site of a layer in one step or some neighbouring ones; shares below 0.0001 "
           "are left out"},
      });
  return keys;
}

}  // namespace

const JsonObject<SiteExponents>& json_object(const SiteExponents*) {
  static const JsonObject<SiteExponents> keys(
      "",
      {
          {"first", &SiteExponents::first, "exponent of the first count"},
          {"counts", &SiteExponents::counts, "values with the exponents `first`, `first` + 1, ..."},
          {"zeros", &SiteExponents::zeros},
          {"nonfinite", &SiteExponents::nonfinite},
      });
  return keys;
}

namespace {

const JsonObject<Link>& json_object(const Link*) {
  static const JsonObject<Link> keys(
      "", {
              {"site", [](auto& l) { return l.report.site(l.link.site); }},
              {"format", [](auto& l) { return l.link.format; },
               "of the lane there; empty: not recorded"},
              {"largest", [](auto& l) { return l.link.largest; },
               "magnitude before rounding; `null`: infinite or not measured"},
              {"limit", [](auto& l) { return l.link.limit; }, "the format's largest number"},
              {"nonfinite_rate", [](auto& l) { return l.link.nonfinite_rate; }, "of all values"},
              {"zeroed_rate", [](auto& l) { return l.link.zeroed_rate; }, "of the nonzero values"},
              {"exponents", [](auto& l) { return l.link.exponents; },
               "magnitudes in that step; absent: the step has no histogram"},
          });
  return keys;
}

const JsonObject<Chain>& json_object(const Chain*) {
  static const JsonObject<Chain> keys(
      "", {
              {"step", [](auto& c) { return c.chain.step; }},
              {"links", [](auto& c) { return each<Link>(c.report, c.chain.links); },
               "the origin first"},
              {"left_out", [](auto& c) { return c.chain.left_out; }, "further links"},
          });
  return keys;
}

const JsonObject<ExponentsAt>& json_object(const ExponentsAt*) {
  static const JsonObject<ExponentsAt> keys =
      JsonObject<ExponentsAt>("",
                              {{"site", [](auto& e) { return e.report.site(e.exponents.site); }}})
          .also([](auto& e) -> const SiteExponents& { return e.exponents; });
  return keys;
}

const JsonObject<CostOf>& json_object(const CostOf*) {
  static const JsonObject<CostOf> keys(
      "", {
              {"lane",
               [](auto& c) { return c.report.lanes[static_cast<size_t>(c.cost.lane)].info.name; }},
              {"relative_time", [](auto& c) { return c.cost.relative_time; }, "of the reference's"},
              {"memory", [](auto& c) { return c.cost.memory; },
               "of a step's tensors in the lane's formats; absent: from a run file that lacks it"},
          });
  return keys;
}

}  // namespace

const JsonObject<LayerError>& json_object(const LayerError*) {
  static const JsonObject<LayerError> keys(
      "", {
              {"layer", &LayerError::layer},
              {"site_id", &LayerError::site, "index into the run file's site table"},
              {"accumulated", &LayerError::total, "against the reference"},
              {"own", &LayerError::local, "of this layer's rounding alone"},
          });
  return keys;
}

const JsonObject<ErrorGrowth>& json_object(const ErrorGrowth*) {
  static const JsonObject<ErrorGrowth> keys(
      "", {
              {"step", &ErrorGrowth::step},
              {"forward", &ErrorGrowth::forward, "activations, in execution order"},
              {"backward", &ErrorGrowth::backward, "gradients of activations"},
          });
  return keys;
}

const JsonObject<MemoryFacts>& json_object(const MemoryFacts*) {
  static const JsonObject<MemoryFacts> keys(
      "", {
              {"total_bytes", [](auto& m) { return total_bytes(m); }},
              {"weights_bytes", &MemoryFacts::weights},
              {"master_weights_bytes", &MemoryFacts::master_weights},
              {"gradients_bytes", &MemoryFacts::gradients},
              {"optimizer_state_bytes", &MemoryFacts::optimizer_state},
              {"kahan_terms_bytes", &MemoryFacts::kahan_terms},
              {"activations_bytes", &MemoryFacts::activations},
          });
  return keys;
}

const JsonObject<LaneViewsOf>& json_object(const LaneViewsOf*) {
  static const auto has = [](auto& v) { return !v.lane.views.exponents.empty(); };
  static const auto differs = [](auto& v) { return has(v) && !v.lane.info.is_reference; };
  static const JsonObject<LaneViewsOf> keys(
      "",
      {
          {"heat_map",
           only_if(differs,
                   [](auto& v) { return each<Grid>(v.lane.views.map, v.lane.views.map.grids); }),
           "where and when values were lost; absent, as the next four: a twin or the captured run"},
          {"chains",
           only_if(differs, [](auto& v) { return each<Chain>(v.report, v.lane.views.chains); }),
           "how the first findings went through the network"},
          {"exponent_steps", only_if(has, [](auto& v) { return v.lane.views.exponent_steps; }),
           "measured ones, whose histograms are added up"},
          {"exponents",
           only_if(has,
                   [](auto& v) { return each<ExponentsAt>(v.report, v.lane.views.exponents); }),
           "histograms of magnitudes before rounding, by site, as computed (with the loss scale)"},
          {"error_growth", [](auto& v) { return has(v) ? v.lane.views.growth : std::nullopt; },
           "relative errors of each layer's last output in one step; absent: no step was fit for "
           "it, or the reference"},
      });
  return keys;
}

const JsonObject<ScaleRange>& json_object(const ScaleRange*) {
  static const JsonObject<ScaleRange> keys =
      JsonObject<ScaleRange>(
          "",
          {
              {"format", [](auto& r) { return r.ranges.format->name; }, "`fp16`"},
              {"keep", [](auto& r) { return kept_layers_sentence(r.ranges); },
               "the sentence of the first screen that names the layers to keep"},
              {"set", [](auto& r) { return loss_scale_sentence(r.ranges); },
               "the one that names the loss scale to set; empty: no layer fits the format"},
          })
          .also([](auto& r) -> const RangeTable& { return r.ranges; });
  return keys;
}

const JsonObject<UnalignedProduct>& json_object(const UnalignedProduct*) {
  static const JsonObject<UnalignedProduct> keys(
      "", {
              {"layer", &UnalignedProduct::layer},
              {"op", &UnalignedProduct::op},
              {"extents", &UnalignedProduct::extents, "`n is 10`"},
          });
  return keys;
}

const JsonObject<CostsOf>& json_object(const CostsOf*) {
  static const JsonObject<CostsOf> keys(
      "", {
              {"gpu", [](auto& c) { return c.report.costs.gpu; }},
              {"products", [](auto& c) { return c.report.costs.products; }, "products of a step"},
              {"unaligned", [](auto& c) { return c.report.costs.unaligned; },
               "those that do not fill the tensor cores' tiles in 16 bits"},
              {"lanes", [](auto& c) { return each<CostOf>(c.report, c.report.costs.lanes); },
               "the reference first; without twins, truth and captured run"},
          });
  return keys;
}

}  // namespace lockstep
